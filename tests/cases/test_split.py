"""C21: split strings that do not parse, and rounding."""

import re
import sys

import pytest

from tests.cases.fixtures import Materials
from tests.cases.harness import Outcome, Program, command, start

DOCUMENTS = 20


WRONG = ["-1,1,0", "90,abc5,5", "0,0,0", "nan,1,0", "inf,1,0", "50,50,0,0", ""]


@pytest.mark.parametrize(("split", "ranks"), [*((split, 1) for split in WRONG), (WRONG[0], 2)])
def test_what_is_no_split_fails_before_data_are_touched(materials: Materials, split: str, ranks: int) -> None:
    words = [*materials.run().split(), "--data-path", "nowhere", "--split", split]
    found = start([*([sys.executable, "pretrain_gpt.py"] if ranks == 1 else command(ranks)), *words])
    assert found.returncode != 0
    assert f"--split {split!r} is not" in found.stderr
    assert found.stderr.count("Traceback") == (ranks > 1), "torchrun has one of its own"


def trained(program: Program, materials: Materials, split: str, *words: str) -> Outcome:
    prefix = materials.documents("twenty", [[10 + n] * 70 for n in range(DOCUMENTS)])
    return program("one", materials.run(), f"--data-path {prefix} --train-iters 2", *words, f"--split {split}")


def ranges(outcome: Outcome) -> list[range]:
    """The documents of each part, as the log states them."""
    (line,) = re.findall(r"documents (train .*)", outcome.said[0])
    found = []
    for part in ("train", "valid", "test"):
        stated = re.search(rf"{part} (?:(\d+) to (\d+)|none)", line)
        assert stated, line
        low, high = stated.groups()
        found.append(range(int(low), int(high) + 1) if low else range(0))
    return found


@pytest.mark.parametrize(
    ("split", "sizes", "announced"),
    [
        ("949,50,1", [19, 1, 0], 1),
        ("100,0,0", [20, 0, 0], 0),
        ("98,2,0", [20, 0, 0], 1),
        ("1,1,1", [7, 6, 7], 0),
        ("0.9,0.1,0", [18, 2, 0], 0),
    ],
)
def test_every_document_is_in_one_part(program, materials, split: str, sizes: list[int], announced: int) -> None:
    found = trained(program, materials, split)
    assert found.status == 0 and len(found.losses) == 2
    parts = ranges(found)
    assert [len(part) for part in parts] == sizes
    assert [document for part in parts for document in part] == list(range(DOCUMENTS))
    assert found.said[0].count("its share rounds to no document") == announced


def test_spaces_change_nothing(materials: Materials) -> None:
    words = [*materials.run().split(), "--mock-data", "--print-config", "--split", "98, 2, 0"]
    found = start([sys.executable, "pretrain_gpt.py", *words])
    assert found.returncode == 0 and 'split = "98, 2, 0"' in found.stdout


def test_a_part_that_is_used_must_not_be_empty(program, materials) -> None:
    found = trained(program, materials, "1,0,99")
    assert found.status == 1
    assert "--split 1,0,99 leaves 0 tokens of" in found.said[0] and "for train" in found.said[0]


@pytest.mark.parametrize("split", ["100,0,0", "98,2,0"])
def test_nothing_to_evaluate_is_said_and_harmless(program, materials, split: str) -> None:
    found = trained(program, materials, split, "--train-iters 4 --eval-iters 2 --eval-interval 2")
    assert found.status == 0 and len(found.losses) == 4
    assert "valid: no data, so there is nothing to evaluate on." in found.said[0]
    assert not [record for record in found.records if "validation_loss" in record]
