"""What a step sends equals the closed forms, call by call and byte by byte."""

import pytest
import torch

from megalite.arith.traffic import data_parallel_traffic, tensor_parallel_traffic
from megalite.config.schema import Config
from megalite.config.size import model_size
from megalite.mesh import ParallelMesh
from megalite.train.step import train_step
from tests.parallel import harness
from tests.parallel.harness import GLOBAL_BATCH, MODELS, VOCAB, Layout
from tests.pool import Pool

LAYOUTS: dict[str, Layout] = {
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "tp2-sp": {"tp": 2, "sp": 1},
    "dp2": {"dp": 2},
    "dp2-overlap": {"dp": 2, "overlap": 1, "bucket": 4000},
    "tp2-sp-dp2": {"tp": 2, "sp": 1, "dp": 2},
    "dp2-sharded": {"dp": 2, "sharded": 1},
    "dp4-sharded": {"dp": 4, "sharded": 1, "overlap": 1, "gather": 1, "bucket": 4000},
}

Counts = dict[str, tuple[int, int]]


def sent(mesh: ParallelMesh, settings: Config) -> tuple[Counts, Counts, int, int]:
    """What one step sends over tp and dp: collective -> (calls, bytes); the buckets and parameters of a rank."""
    engine = harness.make(mesh, settings, torch.float32)
    train_step(engine, harness.batch(mesh, settings, 0), step=1, consumed_samples=0)
    engine.buffer.wait_params()
    tp, dp = (
        {name: (group.traffic.calls[name], group.traffic.bytes[name]) for name in group.traffic.calls}
        for group in (mesh.tp, mesh.dp)
    )
    return tp, dp, len(engine.buffer.buckets), len(engine.buffer.params)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["gpt2", "llama", "qk norm", "qk layer norm", "sinks"])
def test_a_step_sends_what_the_closed_forms_say(pool: Pool, model: str, layout: str) -> None:
    settings = harness.config(model, LAYOUTS[layout])
    grid = harness.grid(LAYOUTS[layout])
    expected_tp = tensor_parallel_traffic(
        model_size(settings.model, vocab_size=VOCAB),
        tensor_parallel_size=grid.size("tp"),
        sequence_parallel=settings.parallel.sequence_parallel,
        micro_batch_size=1,
        num_micro_batches=GLOBAL_BATCH // grid.size("dp"),
        param_bytes=4,
    )
    for tp, dp, buckets, parameters in pool.run(grid, sent, settings):
        assert tp == {name: (s.calls, s.nbytes) for name, s in expected_tp.items()}
        gradients = data_parallel_traffic(
            parameters=parameters,
            data_parallel_size=grid.size("dp"),
            buckets=buckets,
            grad_bytes=4,
            param_bytes=4,
            sharded=settings.parallel.use_distributed_optimizer,
        )
        assert dp == {name: (s.calls, s.nbytes) for name, s in gradients.items()}
        assert (buckets > 2) == ("bucket" in LAYOUTS[layout])


def test_the_counts_of_the_papers(pool: Pool) -> None:
    """m (4L + 2) all-reduces and m all-gathers; with sequence parallelism m (6L + 4), m (4L + 2), and one for norms."""
    m, layers = GLOBAL_BATCH, MODELS["gpt2"].num_layers
    for layout, calls in {
        "tp2": {"all_reduce": m * (4 * layers + 2), "all_gather": m},
        "tp2-sp": {"all_gather": m * (6 * layers + 4), "reduce_scatter": m * (4 * layers + 2), "all_reduce": 1},
    }.items():
        tp, *_ = pool.run(harness.grid(LAYOUTS[layout]), sent, harness.config("gpt2", LAYOUTS[layout]))[0]
        assert {name: count for name, (count, _) in tp.items()} == calls
