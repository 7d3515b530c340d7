"""What --memory-report measures of states and logits is what the closed forms say, to the byte."""

from dataclasses import replace

import pytest
import torch

from megalite.config.derive import derive
from megalite.config.schema import Config
from megalite.mesh import ParallelMesh
from megalite.observe.record import Sink
from megalite.train.memory_report import Bytes, MemoryReport, computed, held_states, table
from megalite.train.resume import Progress
from megalite.train.step import train_step
from tests.parallel import harness
from tests.parallel.harness import VOCAB, Layout
from tests.pool import Pool

AXES: dict[str, Layout] = {"tp2": {"tp": 2}, "pp2": {"pp": 2}}
KEPT: dict[str, Layout] = {
    "replicated": {},
    "sharded": {"dp": 2, "sharded": 1},
    "offloaded": {"offload": "cpu"},
    "on disk, sharded": {"dp": 2, "sharded": 1, "offload": "disk"},
}
STATES = ("params", "main grads", "main params", "moments")


def states(mesh: ParallelMesh, settings: Config) -> tuple[Bytes, Bytes]:
    """Measured and computed."""
    dtype = torch.bfloat16 if settings.train.bf16 else torch.float32
    held = held_states(harness.make(mesh, settings, dtype))
    return held, computed(settings, derive(settings, mesh.world.size), VOCAB, mesh.pp.rank)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("axis", AXES)
def test_states(pool: Pool, axis: str, kept: str, bf16: bool) -> None:
    layout = AXES[axis] | KEPT[kept]
    for held, said in pool.run(harness.grid(layout), states, harness.config("gpt2", layout, bf16=bf16)):
        both = [{kind: n for kind, n in part.items() if kind.startswith(STATES)} for part in (held, said)]
        assert both[0] == both[1]
        on_device = {"params", "main grads", *(() if "offload" in layout else ("moments", "main params")[: 1 + bf16])}
        assert {kind for kind in both[0] if "," not in kind} == on_device


class Heard(Sink):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.text = ""

    def note(self, text: str) -> None:
        self.text += text


def reported(mesh: ParallelMesh, settings: Config) -> tuple[str, Bytes, Bytes, int]:
    """The table of a first step, the numbers in it, and what is left of the saved tensors."""
    engine, heard, progress = harness.make(mesh, settings, torch.float32), Heard(), Progress()
    derived = derive(settings, mesh.world.size)
    report = MemoryReport(settings, derived, engine, heard, vocab_size=VOCAB)
    report.tell(progress)
    assert not heard.text, "no step was made"
    watched = replace(engine, watch=report.watch)
    for step in (1, 2):
        train_step(watched, harness.batch(mesh, settings, step), step=step, consumed_samples=0)
        report.tell(progress)
    return heard.text, report.measured(), report.computed, report.saved.now.total()


def test_the_first_step_is_reported_once(pool: Pool) -> None:
    layout: Layout = {"pp": 2, "dp": 2, "overlap": 1, "bucket": 3000}
    ranks = pool.run(harness.grid(layout), reported, harness.config("gpt2", layout))
    said = ranks[0][0]
    now = table([(measured, forms) for _, measured, forms, _ in ranks])
    assert said.splitlines()[:-1] == now[:-1], "all but the peak, which rises"
    for text, measured, forms, left in ranks:
        assert text == said
        assert left == 0, "all is released by the end of a step"
        assert measured.get("logits", 0) == forms.get("logits", 0)
        assert measured["activations"] >= forms["activations"] > 0
        assert f"{measured['activations']:,}" in said
    assert {bool(measured.get("logits")) for _, measured, _, _ in ranks} == {True, False}, "the last stage has them"
