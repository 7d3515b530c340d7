"""16 bits: the same curves in every layout, dtypes and bytes, overflows that all ranks agree on."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megalite.arith.memory import state_bytes
from megalite.config.schema import Checkpoint, Config
from megalite.data.tokenizer import NullTokenizer
from megalite.data_parallel.main_grads import Bucket
from megalite.gradient import main_grad_of
from megalite.grid import Grid
from megalite.mesh import ParallelMesh
from megalite.shard import Shard
from megalite.train.build import Engine
from megalite.train.resume import Progress
from megalite.train.save import writer
from megalite.train.step import StepResult, forward_backward, train_step
from tests.parallel import harness
from tests.parallel.harness import GLOBAL_BATCH, VOCAB, Layout, soak
from tests.pool import Pool

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LAYOUTS: dict[str, Layout] = {
    "dp2": {"dp": 2},
    "dp4": {"dp": 4},
    "tp2-dp2": {"tp": 2, "dp": 2},
    "pp2-dp2": {"pp": 2, "dp": 2},
    "tp2-pp2-dp2": {"tp": 2, "pp": 2, "dp": 2},
}
STATES = {"replicated": 0, "sharded": 1, "gradients sharded": 2}
STEPS = 20
CURVE_LIMIT = {"fp32": (1e-5, 1e-5), "bf16": (1e-2, 5e-2), "fp16": (2e-3, 1e-2)}
"""Of the loss and of the gradient norm, relative, over STEPS steps."""


def config(model: str, precision: str, layout: Layout, **train: Any) -> Config:
    """The settings of one case; the loss scale starts low enough for these models."""
    settings = harness.config(model, layout)
    given = {"bf16": precision == "bf16", "fp16": precision == "fp16", "initial_loss_scale": 2.0**10, **train}
    return replace(settings, train=replace(settings.train, **given))


def curve(mesh: ParallelMesh, settings: Config, precision: str, steps: int) -> tuple[list[StepResult], list[Shard]]:
    """Some steps, and the main params at the end."""
    engine = harness.make(mesh, settings, DTYPES[precision])
    results = [one_step(engine, settings, step, (step - 1) * GLOBAL_BATCH) for step in range(1, steps + 1)]
    return results, mains(engine)


def one_step(engine: Engine, settings: Config, step: int, samples: int) -> StepResult:
    return train_step(engine, harness.batch(engine.mesh, settings, step), step=step, consumed_samples=samples)


def mains(engine: Engine) -> list[Shard]:
    """The main params that this rank owns."""
    if not engine.optimizer.has_copy:
        return list(engine.buffer.shards())
    kept = [shard for shard in engine.optimizer.shards() if shard.name.startswith("optimizer.main.")]
    return [replace(shard, tensor=shard.tensor.clone()) for shard in kept]  # one of a file could not travel


@cache
def one_rank(model: str, precision: str) -> list[StepResult]:
    return Pool().run(Grid(sizes={}), curve, config(model, precision, {}), precision, STEPS)[0][0]


FEW = [
    ("gpt2", "dp2", "replicated", "fp16"),
    ("llama", "dp2", "sharded", "fp16"),
    ("llama", "tp2-dp2", "sharded", "bf16"),
    ("gpt2", "pp2-dp2", "sharded", "fp16"),
    ("gpt2", "dp4", "sharded", "fp32"),
    ("gpt2", "dp2", "gradients sharded", "fp32"),
    ("llama", "dp4", "gradients sharded", "bf16"),
    ("gpt2", "tp2-dp2", "gradients sharded", "fp16"),
]
ALL = [
    case
    for case in product(["gpt2", "llama"], LAYOUTS, STATES, DTYPES)
    if not ("pp" in LAYOUTS[case[1]] and STATES[case[2]] == 2)
]


@pytest.mark.parametrize(
    ("model", "layout", "states", "precision"), FEW + [soak(*case) for case in ALL if case not in FEW]
)
def test_the_curve_is_that_of_one_rank(pool: Pool, model: str, layout: str, states: str, precision: str) -> None:
    asked = {**LAYOUTS[layout], "sharded": STATES[states]}
    ranks = pool.run(harness.grid(asked), curve, config(model, precision, asked), precision, STEPS)
    results = ranks[0][0]
    assert all(rank[0] == results for rank in ranks), "ranks disagree"
    found, expected = (
        torch.tensor([(result.loss, result.grad_norm) for result in each], dtype=torch.float64)
        for each in (results, one_rank(model, precision))
    )
    off = ((found - expected).abs() / expected).amax(0)
    limit = torch.tensor(CURVE_LIMIT[precision], dtype=torch.float64)
    assert (off <= limit).all(), f"loss and norm off by {off.tolist()}"


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("precision", DTYPES)
def test_dtypes_and_bytes_of_every_buffer(pool: Pool, precision: str, states: str) -> None:
    """Bytes per parameter: 16 in fp32, 18 in 16 bits; 8 + 8/d and 6 + 12/d where states are sharded over d ranks, and
    4 + 12/d and 2 + 16/d where gradients are as well."""
    layout, stage = {"dp": 2, "sharded": STATES[states]}, STATES[states]
    for buffers in pool.run(harness.grid(layout), kept, config("gpt2", precision, layout), precision):
        wide, narrow = torch.float32, DTYPES[precision]
        has_main = {} if precision == "fp32" else {"main": wide}
        expected = {"params": narrow, "grads": wide, "exp_avg": wide, "exp_avg_sq": wide, **has_main}
        assert {name: dtype for name, (dtype, _) in buffers.items()} == expected
        nbytes = {name: n for name, (_, n) in buffers.items()}
        parameters = nbytes["params"] // narrow.itemsize
        shards = {"shards": 1 + (stage > 0), "grad_shards": 1 + (stage > 1)}
        formula = state_bytes(parameters, param_bytes=narrow.itemsize, moments=2, **shards)
        assert nbytes["params"] == formula.params
        assert nbytes["grads"] == formula.main_grads
        assert nbytes.get("main", 0) == formula.main_params
        assert nbytes["exp_avg"] + nbytes["exp_avg_sq"] == formula.moments
        replicated, sharded = {
            "fp32": [(16, 0), (8, 8), (4, 12)],
            "bf16": [(18, 0), (6, 12), (2, 16)],
            "fp16": [(18, 0), (6, 12), (2, 16)],
        }[precision][stage]
        assert sum(nbytes.values()) == parameters * replicated + parameters * sharded // 2


def kept(mesh: ParallelMesh, settings: Config, precision: str) -> dict[str, tuple[torch.dtype, int]]:
    """The dtype and the bytes of all that lives as long as the run."""
    engine = harness.make(mesh, settings, DTYPES[precision])
    [home] = engine.optimizer.homes
    vectors = {"params": engine.buffer.params, "grads": engine.buffer.grads.vector, **home.vectors}
    return {name: (vector.dtype, vector.numel() * vector.element_size()) for name, vector in vectors.items()}


OVERFLOWS: dict[str, tuple[Layout, str, int]] = {
    "dp2": ({"dp": 2}, "layers.0.mlp.fc1.weight", 1),
    "dp2-sharded": ({"dp": 2, "sharded": 1, "gather": 1}, "layers.0.mlp.fc1.weight", 1),
    "dp2-sharded, padding is nobody's": ({"dp": 2, "sharded": 1}, "final_norm.bias", 0),
    "tp2, a replica": ({"tp": 2}, "final_norm.weight", 1),
    "tp2-sp": ({"tp": 2, "sp": 1}, "layers.1.mlp_norm.weight", 1),
    "pp2": ({"pp": 2}, "layers.1.mlp.fc2.weight", 1),
    "pp2, the tied copy": ({"pp": 2}, "embedding.word.weight", 1),
    "pp2-dp2-sharded": ({"pp": 2, "dp": 2, "sharded": 1}, "layers.0.mlp.fc2.bias", 1),
    "dp2, gradients sharded": ({"dp": 2, "sharded": 2, "bucket": 3000, "overlap": 1}, "layers.0.mlp.fc1.weight", 1),
    "tp2-dp2, gradients sharded": ({"tp": 2, "dp": 2, "sharded": 2}, "embedding.word.weight", 3),
}
"""Layouts, and where a gradient becomes infinite: the parameter, and the rank."""


def overflow(engine: Engine, name: str) -> Callable[[], None]:
    """Make the parameter's gradient of this step infinite on this rank, before anything is summed. Returns the undo."""
    sound = engine.buffer.grads.send

    def send(bucket: Bucket) -> None:
        for slot in (slot for slot in bucket.slots if slot.name == name):
            main_grad_of(slot.parameter).view().view(-1)[1] = torch.inf
        sound(bucket)

    engine.buffer.grads.send = send  # type: ignore[method-assign]
    return lambda: setattr(engine.buffer.grads, "send", sound)


def snapshot(engine: Engine) -> list[Tensor]:
    engine.buffer.wait_params()
    return [engine.buffer.params.clone(), *(shard.tensor.clone() for shard in engine.optimizer.shards())]


def run_over(
    mesh: ParallelMesh, settings: Config, precision: str, name: str, where: int, bad: tuple[int, ...]
) -> list[tuple[bool, float, int, float, bool]]:
    """Steps of which some are bad on one rank: skipped, scale after it, Adam's step, rate, whether nothing changed."""
    engine, progress, seen = harness.make(mesh, settings, DTYPES[precision]), Progress(), []
    for step in range(1, 7):
        before = snapshot(engine)
        undo = overflow(engine, name) if step in bad and mesh.rank == where else lambda: None
        result = one_step(engine, settings, step, progress.schedule_samples)
        undo()
        progress.count(GLOBAL_BATCH, skipped=result.skipped)
        same = all(torch.equal(a, b) for a, b in zip(before, snapshot(engine), strict=True))
        seen.append((result.skipped, engine.loss_scale.value, engine.optimizer.steps, result.learning_rate, same))
    assert (progress.consumed_samples, progress.skipped) == (6 * GLOBAL_BATCH, len(bad))
    return seen


@pytest.mark.parametrize("case", OVERFLOWS)
def test_an_overflow_on_one_rank_is_skipped_by_all(pool: Pool, case: str) -> None:
    layout, name, where = OVERFLOWS[case]
    ranks = pool.run(harness.grid(layout), run_over, config("gpt2", "fp16", layout), "fp16", name, where, (2, 4, 5))
    assert all(rank == ranks[0] for rank in ranks)
    skipped, scales, steps, rates, same = zip(*ranks[0], strict=True)
    assert skipped == same == (False, True, False, True, True, False)
    assert scales == (2**10, 2**10, 2**10, 2**9, 2**8, 2**8)  # hysteresis 2, and used up from then on
    assert steps == (1, 1, 2, 2, 2, 3)
    assert (rates[1], rates[3:5]) == (rates[2], (rates[5], rates[5]))
    assert len(set(rates)) == 3


def test_a_gradient_that_is_not_finite_may_be_passed_over_in_bf16(pool: Pool) -> None:
    settings = config("gpt2", "bf16", {"dp": 2}, check_for_nan_in_loss_and_grad=False)
    ranks = pool.run(harness.grid({"dp": 2}), run_over, settings, "bf16", "layers.0.mlp.fc1.weight", 1, (3,))
    assert ranks[0] == ranks[1]
    assert [step[0] for step in ranks[0]] == [False, False, True, False, False, False]
    assert {step[1] for step in ranks[0]} == {1.0}


def said(mesh: ParallelMesh, settings: Config, precision: str, name: str) -> tuple[int, str]:
    """At which iteration a run whose every gradient of `name` is infinite on one rank stops, and what it says."""
    engine = harness.make(mesh, settings, DTYPES[precision])
    if mesh.rank == mesh.world.size - 1:
        overflow(engine, name)
    for step in range(1, 9):
        try:
            one_step(engine, settings, step, 0)
        except FloatingPointError as error:
            return step, str(error)
    return 0, ""


@pytest.mark.parametrize("layout", [{"dp": 2}, {"dp": 2, "sharded": 2}, {"tp": 2}])
@pytest.mark.parametrize(
    ("precision", "train", "step", "words"),
    [
        ("fp16", {"min_loss_scale": 2.0**8}, 4, "at loss scale 256, which may not fall further; "),
        ("fp16", {"loss_scale": 64.0}, 1, "at loss scale 64, which may not fall further; "),
        ("bf16", {}, 1, "; every output is finite, but "),
        ("fp32", {}, 1, "; every output is finite, but "),
    ],
)
def test_what_no_scale_can_mend_stops_the_run(
    pool: Pool, layout: Layout, precision: str, train: dict[str, Any], step: int, words: str
) -> None:
    name = "layers.1.mlp.fc2.weight"
    ranks = pool.run(harness.grid(layout), said, config("gpt2", precision, layout, **train), precision, name)
    assert all(rank == ranks[0] for rank in ranks)
    assert ranks[0][0] == step
    assert words in ranks[0][1]
    assert f"every output is finite, but 1 gradients are not, {name} among them." in ranks[0][1]
    assert f"--iterations-to-skip {step} " in ranks[0][1]


def spoilt(mesh: ParallelMesh, settings: Config) -> tuple[int, str]:
    """The same of a run with one NaN among the weights of its last layer."""
    engine = harness.make(mesh, settings, torch.float16)
    for slot in (slot for slot in engine.buffer.slots if slot.name == "layers.1.mlp.fc2.weight"):
        slot.parameter.data.view(-1)[0] = torch.nan
    try:
        one_step(engine, settings, 1, 0)
    except FloatingPointError as error:
        return engine.optimizer.steps, str(error)
    return -1, ""


@pytest.mark.parametrize("layout", [{"dp": 2, "sharded": 2}, {"tp": 2}, {"pp": 2}])
def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(pool: Pool, layout: Layout) -> None:
    """C35 (a) in fp16: at the first iteration, with iteration, tensor and rank."""
    ranks = pool.run(harness.grid(layout), spoilt, config("gpt2", "fp16", layout))
    assert all(rank == ranks[0] for rank in ranks)
    steps, text = ranks[0]
    assert steps == 0
    assert text.startswith("iteration 1: loss nan, gradient norm nan; the first output that is not finite is that of ")
    assert f"layers.1.mlp.fc2 on rank {int('pp' in layout)}. " in text


def go_on(mesh: ParallelMesh, settings: Config, precision: str, steps: int) -> list[tuple[float, float, float]]:
    """Go on from --load or start; (loss, norm, loss scale) of some steps; save them if --save is given."""
    resumed = harness.resume(mesh, settings, DTYPES[precision])
    engine, progress, seen = resumed.engine, resumed.progress, []
    for _ in range(steps):
        result = one_step(engine, settings, progress.iteration + 1, progress.schedule_samples)
        progress.count(GLOBAL_BATCH, skipped=result.skipped)
        seen.append((result.loss, result.grad_norm, engine.loss_scale.value))
    if settings.checkpoint.save:
        writer(engine, settings, NullTokenizer(VOCAB))(progress).result()
    return seen


@pytest.mark.parametrize("layout", [{}, {"dp": 2, "sharded": 1}])
@pytest.mark.parametrize("first", [1, 3, 5])
def test_a_loss_scale_goes_on_bit_for_bit(pool: Pool, tmp_path: Path, layout: Layout, first: int) -> None:
    """From amid its course: it starts too high, and grows every second step."""
    grid, train = harness.grid(layout), {"initial_loss_scale": 2.0**22, "loss_scale_window": 2}
    settings = config("gpt2", "fp16", layout, **train)
    [through, *_] = pool.run(grid, go_on, settings, "fp16", 8)
    [before, *_] = pool.run(grid, go_on, replace(settings, checkpoint=Checkpoint(save=str(tmp_path))), "fp16", first)
    [after, *_] = pool.run(grid, go_on, replace(settings, checkpoint=Checkpoint(load=str(tmp_path))), "fp16", 8 - first)
    assert str(before + after) == str(through)  # NaN is not itself
    scales = [scale for *_, scale in through]
    moves = {(after > before) - (after < before) for before, after in pairwise(scales)}
    assert moves == {-1, 0, 1}, f"a course without rise or fall: {scales}"


def test_small_gradients_survive_by_the_scale(pool: Pool) -> None:
    """Seeded with 2^-20, what fp16 can hold no more is lost; with a scale it comes back."""
    zeros = {
        scale: pool.run(harness.grid({}), vanished, config("gpt2", "fp16", {}, loss_scale=scale))[0]
        for scale in (2.0**-10, 2.0**10)
    }
    assert zeros[2.0**10] * 4 < zeros[2.0**-10]


def vanished(mesh: ParallelMesh, settings: Config) -> int:
    """How many elements of the gradient are zero."""
    engine = harness.make(mesh, settings, torch.float16)
    forward_backward(engine, harness.batch(mesh, settings, 0), step=1)
    return int((engine.buffer.grads.vector == 0).sum())


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_may_travel_in_bf16(pool: Pool, states: str, deterministic: bool) -> None:
    layout = {"dp": 2, "sharded": STATES[states], "bucket": 4000}
    settings = config("gpt2", "bf16", layout, deterministic_mode=deterministic)
    narrow = replace(settings, parallel=replace(settings.parallel, grad_reduce_in_bf16=True))
    exact, rounded = ([*pool.run(harness.grid(layout), summed, each)] for each in (settings, narrow))
    assert all(2 * less == more for (_, less), (_, more) in zip(rounded, exact, strict=True)), "bytes sent"
    before, after = (harness.assemble([shards for shards, _ in ranks])[0] for ranks in (exact, rounded))
    for name in before:
        if STATES[states] < 2:  # else it is a sum of such sums
            assert torch.equal(after[name], after[name].to(torch.bfloat16).to(torch.float32)), name
        assert not torch.equal(after[name], before[name]), name
        assert harness.distance(after[name], before[name]) < 2**-7, name


def summed(mesh: ParallelMesh, settings: Config) -> tuple[list[Shard], int]:
    """What this rank owns of the gradients, and the bytes that their sums took."""
    engine = harness.make(mesh, settings, torch.bfloat16)
    forward_backward(engine, harness.batch(mesh, settings, 0), step=1)
    return harness.grad_shards(engine), sum(mesh.dp.traffic.bytes.values())
