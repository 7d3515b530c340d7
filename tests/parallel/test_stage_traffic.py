"""What each pipeline rank sends and holds equals what --dry-run says of it."""

import pytest
import torch

from megalite.config.schema import Config
from megalite.mesh import ParallelMesh
from megalite.train.step import forward_backward
from tests.parallel import harness
from tests.parallel.harness import Layout
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


def sent(mesh: ParallelMesh, settings: Config) -> tuple[Counts, Counts, int, int]:
    """What one step sends, and what was planned: group -> collective -> (calls, bytes); the same of parameters."""
    engine = harness.make(mesh, settings, torch.float32)
    groups = {"tp": mesh.tp, "pp": mesh.pp, "ends of pp": mesh.ends}
    before = {name: group.traffic.calls.copy() for name, group in groups.items()}
    assert not any(before.values()), "making the model sends nothing"
    forward_backward(engine, harness.batch(mesh, settings, 0), step=1)
    counts = {
        name: {verb: (group.traffic.calls[verb], group.traffic.bytes[verb]) for verb in group.traffic.calls}
        for name, group in groups.items()
    }
    plan = harness.plan_of(settings, mesh)
    planned = {group: {verb: (s.calls, s.nbytes) for verb, s in plan.traffic[group].items()} for group in counts}
    return counts, planned, sum(slot.parameter.numel() for slot in engine.buffer.slots), plan.parameters


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["gpt2", "llama", "qk layer norm"])
def test_a_rank_sends_and_holds_what_the_plan_says(pool: Pool, model: str, layout: str) -> None:
    settings = harness.config(model, LAYOUTS[layout], num_layers=4)
    for counts, planned, held, parameters in pool.run(harness.grid(LAYOUTS[layout]), sent, settings):
        assert counts["pp"].pop("all_reduce") == (1, 8), "the loss is told to all stages"
        assert counts == planned
        assert held == parameters
