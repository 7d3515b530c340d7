"""What each pipeline rank sends and holds equals what --dry-run says of it."""

import pytest
import torch

from megalite.config.derive import derive, padded_vocab_size
from megalite.config.schema import Config
from megalite.config.size import model_size
from megalite.mesh import ParallelMesh
from megalite.plan.rank import rank_plans
from megalite.schedule.partition import partition
from megalite.schedule.schedules import make_schedule
from megalite.train.step import forward_backward
from tests.parallel import harness
from tests.parallel.harness import VOCAB, Layout
from tests.pool import Pool

LAYOUTS: dict[str, Layout] = {
    "pp4": {"pp": 4},
    "tp2-pp2": {"tp": 2, "pp": 2},
    "tp2-pp2-sp": {"tp": 2, "pp": 2, "sp": 1},
    "tp2-pp2-interleaved": {"tp": 2, "pp": 2, "v": 2},
    "tp2-pp2-sp-zb-v": {"tp": 2, "pp": 2, "sp": 1, "schedule": "zb-v"},
    "tp2-pp2-zb-v": {"tp": 2, "pp": 2, "schedule": "zb-v"},
    "tp2-pp2-sp-empty": {"tp": 2, "pp": 2, "sp": 1, "layout": "E|t*4||L"},
}

Counts = dict[str, dict[str, tuple[int, int]]]


def sent(mesh: ParallelMesh, settings: Config) -> tuple[Counts, int, int]:
    """What one step sends: group -> collective -> (calls, bytes); the pipeline rank, and how many parameters it has."""
    engine = harness.make(mesh, settings, torch.float32)
    groups = {"tp": mesh.tp, "pp": mesh.pp, "ends of pp": mesh.ends}
    before = {name: group.traffic.calls.copy() for name, group in groups.items()}
    assert not any(before.values()), "making the model sends nothing"
    forward_backward(engine, harness.batch(mesh, settings, 0), step=1)
    counts = {
        name: {verb: (group.traffic.calls[verb], group.traffic.bytes[verb]) for verb in group.traffic.calls}
        for name, group in groups.items()
    }
    return counts, mesh.pp.rank, sum(slot.parameter.numel() for slot in engine.buffer.slots)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["gpt2", "llama", "qk layer norm"])
def test_a_rank_sends_and_holds_what_the_plan_says(pool: Pool, model: str, layout: str) -> None:
    settings, grid = harness.config(model, LAYOUTS[layout], num_layers=4), harness.grid(LAYOUTS[layout])
    derived, tp = derive(settings, grid.world_size), grid.size("tp")
    padded = padded_vocab_size(VOCAB, divisible_by=settings.model.make_vocab_size_divisible_by, tensor_parallel_size=tp)
    pipeline = derived.pipeline
    programs = make_schedule(
        pipeline.schedule,
        num_ranks=pipeline.num_ranks,
        num_micro_batches=derived.num_micro_batches,
        num_chunks=pipeline.num_chunks,
        group_size=pipeline.group_size,
    )
    stages = partition(settings.model, settings.parallel, vocab_size=VOCAB)
    plans = rank_plans(settings, derived, model_size(settings.model, vocab_size=padded), stages, programs)
    for counts, rank, parameters in pool.run(grid, sent, settings):
        plan = plans[rank]
        loss = counts["pp"].pop("all_reduce")
        assert loss == (1, 8), "the loss is told to all stages"
        expected = {group: {verb: (s.calls, s.nbytes) for verb, s in plan.traffic[group].items()} for group in counts}
        assert counts == expected
        assert parameters == plan.parameters
