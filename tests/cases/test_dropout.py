"""C33: dropout and recomputed activations."""

from itertools import product

import pytest

from tests.cases.fixtures import WHOLE, Materials, same
from tests.cases.harness import LAYOUTS, OTHERS, Outcome, Program
from tests.parallel.harness import soak

DROPOUT = "--hidden-dropout 0.2 --attention-dropout 0.2"
FULL = "--recompute-granularity full"
RECOMPUTE = {
    "none": "",
    "uniform": f"{FULL} --recompute-method uniform --recompute-num-layers 1",
    "block": f"{FULL} --recompute-method block --recompute-num-layers 1",
    "selective": "--recompute-granularity selective",
    "modules": "--recompute-activations --recompute-modules core_attn layernorm mlp",
    "distributed": f"{FULL} --distribute-saved-activations",
}
"""A way to recompute activations is a row here: it must change no loss."""

ITERATIONS = pytest.mark.parametrize("iterations", [5, pytest.param(20, marks=pytest.mark.soak)])


EVERY = list(product(LAYOUTS, RECOMPUTE))
ONCE = [("one", "uniform"), ("tp2", "distributed"), ("tp2-sp", "modules"), ("pp2", "block"), ("dp2", "selective")]
"""Each way once, and each layout; `make soak` runs all."""


def run(program: Program, materials: Materials, layout: str, *words: str) -> Outcome:
    return program(layout, materials.run(), f"--data-path {materials.corpus()} {WHOLE}", *words)


@ITERATIONS
@pytest.mark.parametrize(("layout", "recompute"), ONCE + [soak(*case) for case in EVERY if case not in ONCE])
def test_recomputing_changes_nothing(program, materials, layout: str, recompute: str, iterations: int) -> None:
    flags = LAYOUTS[layout].flags
    if recompute == "distributed" and ("tensor" not in flags or "sequence" in flags):
        pytest.skip("ranks have nothing alike to keep a part of")
    words = f"{DROPOUT} --train-iters {iterations}"
    plain, found = (run(program, materials, layout, words, RECOMPUTE[name]) for name in ("none", recompute))
    assert found.status == 0 and len(found.losses) == iterations
    assert found.losses == pytest.approx(plain.losses, rel=1e-6)
    assert found.norms == pytest.approx(plain.norms, rel=1e-6)


@ITERATIONS
@pytest.mark.parametrize("layout", OTHERS)
def test_masks_are_the_same_in_every_layout(program, materials, layout: str, iterations: int) -> None:
    words = f"{DROPOUT} --train-iters {iterations}"
    # Micro-batches of another size: a mask follows the sample's place in the global batch, not in the micro-batch.
    found = run(program, materials, layout, words, "--micro-batch-size 4")
    same(found, run(program, materials, "one", words), iterations)


@pytest.mark.parametrize("layout", ["one", "tp2-sp"])
def test_masks_are_drawn_and_follow_from_the_seed(program, materials, layout: str) -> None:
    few = f"{DROPOUT} --train-iters 3"
    dropped = run(program, materials, layout, few)
    again = run(program, materials, layout, few, "--seed 1234")
    for other in ("--seed 1235", "--hidden-dropout 0", "--attention-dropout 0"):
        assert run(program, materials, layout, few, other).losses[0] != dropped.losses[0]
    assert again.losses == dropped.losses and again.norms == dropped.norms
