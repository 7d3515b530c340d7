"""What --memory-report measures of states and logits is what the closed forms say, to the byte."""

from dataclasses import replace

import pytest
import torch

from megalite.config.derive import derive
from megalite.config.memory import Memory
from megalite.config.schema import Config
from megalite.mesh import ParallelMesh
from megalite.observe.record import Sink
from megalite.train.memory_report import TO_WEIGHTS, Bytes, MemoryReport, computed, held_states, table
from megalite.train.resume import Progress
from megalite.train.step import train_step
from tests.parallel import harness
from tests.parallel import test_recompute as recompute
from tests.parallel.harness import VOCAB, Layout, soak
from tests.pool import Pool

AXES: dict[str, Layout] = {"tp2": {"tp": 2}, "pp2": {"pp": 2}}
KEPT: dict[str, Layout] = {
    "replicated": {},
    "sharded": {"dp": 2, "sharded": 1},
    "offloaded": {"offload": "cpu"},
    "on disk, sharded": {"dp": 2, "sharded": 1, "offload": "disk"},
    "gradients sharded": {"dp": 2, "sharded": 2},
}
INSTANCES: Layout = {"dp": 4, "sharded": 1, "instances": 2}
STATES = ("params", "main grads", "main params", "moments")


def states(mesh: ParallelMesh, settings: Config) -> tuple[Bytes, Bytes]:
    """Measured and computed."""
    dtype = torch.bfloat16 if settings.train.bf16 else torch.float32
    held = held_states(harness.make(mesh, settings, dtype))
    return held, computed(settings, derive(settings, mesh.world.size), VOCAB, mesh.pp.rank)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "layout",
    [
        INSTANCES,
        soak(INSTANCES | {"tp": 2, "sharded": 2}),
        *(
            AXES[axis] | more
            for axis in AXES
            for more in KEPT.values()
            if not (axis == "pp2" and more.get("sharded") == 2)
        ),
    ],
    ids=str,
)
def test_states(pool: Pool, layout: Layout, bf16: bool) -> None:
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
    dtype = torch.bfloat16 if settings.train.bf16 else torch.float32
    engine, heard, progress = harness.make(mesh, settings, dtype), Heard(), Progress()
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
        assert measured["activations"] == forms["activations"] > 0
        assert f"{measured['activations']:,}" in said
    assert {bool(measured.get("logits")) for _, measured, _, _ in ranks} == {True, False}, "the last stage has them"


def test_logits_are_kept_once_and_a_rank_without_layers_reports_too(pool: Pool) -> None:
    """In 16 bits, where the gradient of the logits is as narrow as they are."""
    layout: Layout = {"pp": 4, "layout": "E|tt||tL"}
    ranks = pool.run(harness.grid(layout), reported, harness.config("gpt2", layout, bf16=True, num_layers=3))
    assert [text == ranks[0][0] != "" for text, *_ in ranks] == [True] * 4
    (logits,) = {(measured["logits"], forms["logits"]) for _, measured, forms, _ in ranks if "logits" in forms}
    assert logits[0] == logits[1] > 0


def kept(mesh: ParallelMesh, settings: Config) -> tuple[Bytes, Bytes]:
    """What a step keeps: measured, and computed."""
    engine = harness.make(mesh, settings, torch.float32)
    report = MemoryReport(settings, derive(settings, mesh.world.size), engine, Heard(), vocab_size=VOCAB)
    train_step(replace(engine, watch=report.watch), harness.batch(mesh, settings, 1), step=1, consumed_samples=0)
    kinds = ("activations", "logits", "gradients not yet summed", TO_WEIGHTS)
    first, second = (
        {kind: part[kind] for kind in kinds if kind in part} for part in (report.measured(), report.computed)
    )
    return first, second


WAYS = {"": Memory()} | recompute.WAYS
LAYOUTS = recompute.LAYOUTS
MODELS = ["gpt2", "llama", "qk layer norm", "long enough for blocks"]
ALL = [
    (model, layout, way, dropout) for model in MODELS for layout in LAYOUTS for way in WAYS for dropout in (0.1, 0.0)
]
FEW = [case for number, case in enumerate(ALL) if number % 23 == 0]


@pytest.mark.parametrize(("model", "layout", "way", "dropout"), FEW + [soak(*case) for case in ALL if case not in FEW])
def test_every_byte_that_autograd_keeps_has_a_name(
    pool: Pool, model: str, layout: str, way: str, dropout: float
) -> None:
    """On every rank: embedding, layers, loss, what is computed again, and what waits for a split backward's end."""
    settings = harness.config(model, LAYOUTS[layout], dropout=dropout, num_layers=5, micro_batch_size=2)
    # So that nothing else is as wide as the logits, by which they are known.
    model_settings = replace(settings.model, make_vocab_size_divisible_by=40)
    settings = replace(settings, memory=WAYS[way], model=model_settings)
    for measured, forms in pool.run(harness.grid(LAYOUTS[layout]), kept, settings):
        assert measured == forms


@pytest.mark.parametrize(("model", "overlap"), [("gpt2", 1), ("llama", 1), ("llama", 0)])
def test_gradients_that_are_not_kept_have_memory_of_two_buckets(pool: Pool, model: str, overlap: int) -> None:
    """And of the tied matrix, whose gradient takes a whole backward. An untied head is larger than any other."""
    layout: Layout = {"dp": 2, "sharded": 2, "bucket": 4000, "overlap": overlap}
    config = harness.config(model, layout)
    config = replace(config, model=replace(config.model, make_vocab_size_divisible_by=500))
    for measured, forms in pool.run(harness.grid(layout), kept, config):
        assert measured == forms
        head = 4 * 500 * config.model.hidden_size
        assert head < forms["gradients not yet summed"] < 2 * head
