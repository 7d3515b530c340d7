"""C13: a vocabulary that tensor parallelism does not divide."""

import math
from itertools import product
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cases.fixtures import BATCH, WHOLE, Materials, same
from tests.cases.harness import Program
from tests.parallel.harness import soak
from tools import convert_checkpoint

ENTRIES = 321
LAYOUTS = ("one", "tp2", "tp4")
MULTIPLES = (1, 128)
RUNS = list(product(LAYOUTS, MULTIPLES))
WIDE = ("tp4", 1)
NARROW = [run for run in RUNS if run != WIDE]
SIZES = {"vocab_size": ENTRIES}


@pytest.fixture(scope="module")
def saved(program: Program, materials: Materials, tmp_path_factory: pytest.TempPathFactory):
    """Each run of 20 iterations, with its checkpoint; the folder has a name of its own in each."""
    root = tmp_path_factory.mktemp("vocabulary")

    def run(layout: str, multiple: int):
        folder = root / f"{layout}-{multiple}"
        data = f"--data-path {materials.corpus(ENTRIES)} {WHOLE}"
        words = f"{data} --make-vocab-size-divisible-by {multiple} --save {folder} --save-interval 20"
        return program(layout, materials.run(**SIZES), words), folder

    return run


def first_batch(materials: Materials) -> list[list[int]]:
    """The samples of the first iteration, put together outside of the program."""
    return materials.samples(materials.corpus(ENTRIES), 20 * BATCH)[:BATCH]


@pytest.mark.parametrize(("layout", "multiple"), [*NARROW, soak(*WIDE)])
def test_padding_takes_no_part(saved, materials: Materials, layout: str, multiple: int) -> None:
    found, _ = saved(layout, multiple)
    same(found, saved("one", 1)[0])
    assert found.losses[0] == pytest.approx(materials.oracle(**SIZES).mean(first_batch(materials)), rel=1e-4)


@pytest.mark.parametrize(("layout", "multiple"), [*NARROW, soak(*WIDE)])
def test_with_a_zero_head_all_entries_are_alike(
    program: Program, materials: Materials, layout: str, multiple: int
) -> None:
    words = f"--data-path {materials.corpus(ENTRIES)} {WHOLE} --make-vocab-size-divisible-by {multiple}"
    found = program(layout, materials.run(**SIZES, head=0.0), words, "--train-iters 1")
    assert found.losses == pytest.approx([math.log(ENTRIES)], rel=1e-6)


def goes_on(program: Program, materials: Materials, saved, there: tuple[str, int], here: tuple[str, int]) -> None:
    """Two more iterations from there are the same here as where they were saved."""
    run, _, _ = materials.run(**SIZES).partition(" --load")
    words = f"{run} --data-path {materials.corpus(ENTRIES)} {WHOLE} --train-iters 22 --load {saved(*there)[1]}"
    reference = program(there[0], words, f"--make-vocab-size-divisible-by {there[1]}")
    found = program(here[0], words, f"--make-vocab-size-divisible-by {here[1]}")
    same(found, reference, iterations=2)


@pytest.mark.parametrize(("there", "here"), list(zip(NARROW, NARROW[-1:] + NARROW[:-1], strict=True)))
def test_a_checkpoint_loads_in_the_next(program, materials, saved, there, here) -> None:
    goes_on(program, materials, saved, there, here)


@pytest.mark.soak
@pytest.mark.parametrize(("there", "here"), list(product(RUNS, RUNS)))
def test_any_checkpoint_loads_in_any_other(program, materials, saved, there, here) -> None:
    goes_on(program, materials, saved, there, here)


@pytest.mark.parametrize(("layout", "multiple"), [*NARROW, soak(*WIDE)])
def test_an_export_has_no_padding(saved, tmp_path: Path, layout: str, multiple: int) -> None:
    _, folder = saved(layout, multiple)
    assert convert_checkpoint.main(f"--from megalite --to hf --load {folder} --save {tmp_path}/hf".split()) == 0
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert {len(tensors[name]) for name in ("lm_head.weight", "model.embed_tokens.weight")} == {ENTRIES}
