"""C15: a data set smaller than one sample."""

import pytest

from tests.cases.fixtures import PROBE, SEQUENCE, WHOLE, Materials
from tests.cases.harness import ALL, Outcome, Program

WORD = 17
DATA = {
    "10 tokens": [[WORD] * 10],
    "64 tokens": [[WORD] * 64],
    "65 tokens": [[WORD] * 65],
    "129 tokens": [[WORD] * 129],
    "3 documents of a token": [[WORD]] * 3,
}
EPOCHS = {"10 tokens": 129, "64 tokens": 21, "65 tokens": 20, "129 tokens": 10, "3 documents of a token": 427}
"""So many hold 5 iterations x 4 samples x 64 tokens and one more."""
COURSE = f"--global-batch-size 4 --train-iters 5 {WHOLE}"


def run(program: Program, materials: Materials, layout: str, data: str, *words: str, torchrun: bool = False) -> Outcome:
    prefix = materials.documents(data.replace(" ", "-"), DATA[data])
    return program(layout, materials.run(), f"--data-path {prefix} {COURSE}", *words, torchrun=torchrun)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("layout", ALL)
def test_no_sample_holds_anything_else(program, materials, layout: str, data: str) -> None:
    found = run(program, materials, layout, data, PROBE)
    constant = materials.oracle().mean([[WORD] * (SEQUENCE + 1)])
    assert found.status == 0 and found.losses == pytest.approx([constant] * 5, rel=1e-5)
    assert f"from {EPOCHS[data]} epochs of" in found.said[0]


@pytest.mark.parametrize("data", DATA)
def test_training_is_the_same_on_two_ranks(program, materials, data: str) -> None:
    one, two = (run(program, materials, layout, data) for layout in ("one", "dp2"))
    assert two.losses == pytest.approx(one.losses, rel=1e-5) and len(one.losses) == 5
    assert one.losses[-1] < one.losses[0]


def test_as_a_user_starts_it(program, materials) -> None:
    real, ours = (run(program, materials, "dp2", "10 tokens", torchrun=torchrun) for torchrun in (True, False))
    assert real.status == 0, real.said
    assert real.losses == ours.losses and len(real.losses) == 5


@pytest.mark.parametrize("layout", ["one", "dp2"])
def test_no_token_at_all_fails_cleanly(program, materials, layout: str) -> None:
    prefix = materials.documents("nothing", [[]])
    found = program(layout, materials.run(), f"--data-path {prefix} {COURSE}")
    assert found.status == 1
    assert all("0 tokens of" in said and "1 are needed" in said for said in found.said)
