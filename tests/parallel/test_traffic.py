"""What a step sends is what the plan says, call by call and byte by byte, and on every rank."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from megalite.config.schema import Config
from megalite.mesh import ParallelMesh
from megalite.train.step import train_step
from tests.parallel import harness
from tests.parallel.harness import GLOBAL_BATCH, MODELS, Layout, soak
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
    "dp2-grads": {"dp": 2, "sharded": 2},
    "tp2-sp-dp2-sharded": {"tp": 2, "sp": 1, "dp": 2, "sharded": 1, "buckets": 3},
    "tp2-dp2-grads": {"tp": 2, "dp": 2, "sharded": 2, "overlap": 1, "bucket": 3000},
    "pp2-dp2-sharded": {"pp": 2, "dp": 2, "sharded": 1, "buckets": 2},
    "dp4-instances": {"dp": 4, "sharded": 1, "instances": 2, "overlap": 1, "gather": 1, "bucket": 4000},
    "dp4-instances-grads": {"dp": 4, "sharded": 2, "instances": 2, "buckets": 3},
    "dp2-instances": {"dp": 2, "sharded": 1, "instances": 2},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "": {},
    "bf16 on the way": {"grad_reduce_in_bf16": True},
    "deterministic": {"deterministic_mode": True},
    "muon": {"optimizer": "muon"},
    "decoupled": {"decoupled_lr": 1e-3},
}
GROUPS = {"tp": "tp", "shards": "dp", "instances": "instances of the optimizer", "ends": "ends of pp"}
"""In the mesh, and in the plan."""
CASES = [
    *(("gpt2", layout, "") for layout in LAYOUTS),
    ("llama", "tp2", ""),
    ("llama", "tp2-sp-dp2-sharded", ""),
    ("llama", "dp4-sharded", ""),
    ("qk norm", "tp2-dp2-grads", ""),
    ("qk layer norm", "tp2-sp", ""),
    ("sinks", "tp2-sp-dp2", ""),
    ("gpt2", "dp2-grads", "bf16 on the way"),
    ("gpt2", "dp2-overlap", "deterministic"),
    ("llama", "dp2-grads", "deterministic"),
    ("gpt2", "tp2-sp-dp2-sharded", "muon"),
    ("llama", "pp2-dp2-sharded", "muon"),
    ("llama", "tp4", "muon"),
    ("llama", "dp4-sharded", "decoupled"),
    ("llama", "dp4-instances", "muon"),
    ("gpt2", "dp4-instances-grads", "deterministic"),
]
ALL = [
    (model, layout, asked)
    for model in ("gpt2", "llama", "qk norm", "qk layer norm", "sinks")
    for layout in LAYOUTS
    for asked in SETTINGS
    if not ("grads" in layout and asked == "muon")
]

Counts = dict[str, dict[str, tuple[int, int]]]


def config(model: str, layout: Layout, settings: dict[str, Any]) -> Config:
    config = harness.config(model, layout)
    return replace(
        config,
        **{
            name: replace(part, **{key: value for key, value in settings.items() if hasattr(part, key)})
            for name, part in vars(config).items()
            if name in ("parallel", "train", "optimizer")
        },
    )


def sent(mesh: ParallelMesh, settings: Config) -> tuple[Counts, Counts, int, int]:
    """What one step sends, and what was planned: group -> collective -> (calls, bytes); buckets, and parameters."""
    engine = harness.make(mesh, settings, torch.float32)
    train_step(engine, harness.batch(mesh, settings, 0), step=1, consumed_samples=0)
    engine.buffer.wait_params()
    counts = {
        name: {verb: (group.traffic.calls[verb], group.traffic.bytes[verb]) for verb in group.traffic.calls}
        for name, group in ((planned, getattr(mesh, name)) for name, planned in GROUPS.items())
    }
    plan = harness.plan_of(settings, mesh).traffic
    planned = {name: {verb: (one.calls, one.nbytes) for verb, one in plan[name].items()} for name in GROUPS.values()}
    return counts, planned, len(engine.buffer.buckets), len(engine.buffer.params)


@pytest.mark.parametrize(("model", "layout", "asked"), CASES + [soak(*case) for case in ALL if case not in CASES])
def test_a_step_sends_what_was_planned(pool: Pool, model: str, layout: str, asked: str) -> None:
    settings = config(model, LAYOUTS[layout], SETTINGS[asked])
    for counts, planned, buckets, _ in pool.run(harness.grid(LAYOUTS[layout]), sent, settings):
        assert counts == planned
        tied = not MODELS[model].untie_embeddings_and_output_weights
        assert (buckets > 1 + tied) == ("bucket" in LAYOUTS[layout] or "buckets" in LAYOUTS[layout])


@pytest.mark.parametrize("buckets", [{"buckets": 3}, soak({}), soak({"bucket": 3000})])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_counts_of_zero(pool: Pool, stage: int, buckets: Layout) -> None:
    """Once a step, and of every bucket: an all-reduce; from stage 1 on a reduce-scatter and an all-gather, and none; in
    stage 2 as many reduce-scatters as micro-batches. Of the bytes a rank sends (d - 1) / d, d data parallel ranks."""
    layout = {"dp": 2, "sharded": stage, **buckets}
    for counts, _, number, parameters in pool.run(harness.grid(layout), sent, harness.config("gpt2", layout)):
        sums = GLOBAL_BATCH // 2 if stage == 2 else 1
        gradients, gathered = (sums * number, sums * 4 * parameters), (number, 4 * parameters)
        assert counts["dp"] == (
            {"reduce_scatter": gradients, "all_gather": gathered} if stage else {"all_reduce": gradients}
        )


def test_the_counts_of_the_papers(pool: Pool) -> None:
    """m (4L + 2) all-reduces and m all-gathers; with sequence parallelism m (6L + 4), m (4L + 2), and one for norms."""
    m, layers = GLOBAL_BATCH, MODELS["gpt2"].num_layers
    for layout, calls in {
        "tp2": {"all_reduce": m * (4 * layers + 2), "all_gather": m},
        "tp2-sp": {"all_gather": m * (6 * layers + 4), "reduce_scatter": m * (4 * layers + 2), "all_reduce": 1},
    }.items():
        counts, *_ = pool.run(harness.grid(LAYOUTS[layout]), sent, harness.config("gpt2", LAYOUTS[layout]))[0]
        assert {name: count for name, (count, _) in counts["tp"].items()} == calls
