"""Another order of the samples is known from what a checkpoint keeps of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megalite.data.blend import Request
from megalite.data.indexed_writer import IndexedWriter
from megalite.data.order import describe_order, order_differences
from megalite.data.splits import build_datasets

REQUEST = Request(seq_length=8, seed=5, keep=False)


def corpus(folder: Path, name: str, seed: int) -> str:
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(seed)
    with IndexedWriter(folder / name, np.dtype("uint16")) as writer:
        for _ in range(20):
            writer.add_document(random.integers(0, 49, 30))
    return str(folder / name)


def order(*path: str, split: str = "100,0,0", samples: int = 40, request: Request = REQUEST) -> dict[str, Any]:
    found = build_datasets(path, split=split, sizes=(samples, 0, 0), request=request)
    return describe_order(found.train)  # type: ignore[arg-type]


def test_a_corpus_that_was_moved_and_more_samples_of_one_epoch_change_nothing(tmp_path: Path) -> None:
    there = order(corpus(tmp_path / "old", "a", 1))
    assert order_differences(order(corpus(tmp_path / "new", "b", 1), samples=60), there) == []
    assert order_differences(there, {}) == order_differences({}, there) == []


def test_each_difference_is_named(tmp_path: Path) -> None:
    a, b = corpus(tmp_path, "a", 1), corpus(tmp_path, "b", 2)
    there = order(a)
    rows: list[tuple[dict[str, Any], str]] = [
        (order(a, request=replace(REQUEST, seed=6)), "--seed: 6 here, 5 there"),
        (order(a, request=replace(REQUEST, seq_length=9)), "--seq-length: 9 here, 8 there"),
        (order(a, split="50,50,0"), f"--split: documents 0 to 9 of {a} here, 0 to 19 there"),
        (order(b), f"--data-path: {b} here, {a} there, and the documents differ"),
        (order("0.5", a, "0.5", b), f"--data-path: {a}, {b} here, {a} there, and the documents differ"),
        (order(a, samples=80), f"make 2 epochs, the last one apart, of {a} here, 1 epoch there"),
        (order(a, samples=140), f"make 2 epochs of {a} here, 1 epoch there"),
        ({**there, "dataloader_type": "cyclic"}, "--dataloader-type: cyclic here, None there"),
    ]
    for here, said in rows:
        lines = order_differences(here, there)
        assert any(said in line for line in lines), (said, lines)


def test_weights_and_their_order_count(tmp_path: Path) -> None:
    a, b = corpus(tmp_path, "a", 1), corpus(tmp_path, "b", 2)
    there = order("1", a, "1", b)
    assert order_differences(order("3", a, "3", b), there) == []
    assert order_differences(order("3", a, "1", b), there) == [
        "--data-path: weights 0.75 0.25 here, 0.5 0.5 there",
    ]
    assert "the documents differ" in order_differences(order("1", b, "1", a), there)[0]


@pytest.mark.parametrize(
    ("samples", "epochs", "apart"), [(74, 1, False), (75, 2, True), (132, 2, True), (133, 2, False)]
)
def test_equal_descriptions_are_equal_orders(tmp_path: Path, samples: int, epochs: int, apart: bool) -> None:
    """What is described is all that Megatron's order follows from: the same words, the same first samples."""
    a = corpus(tmp_path, "a", 1)
    told = order(a, samples=samples)
    assert (told["corpora"][0]["epochs"], told["corpora"][0]["last_apart"]) == (epochs, apart)
    for other in (10, 74, 75, 132, 133, 140, 160):
        here, there = (
            build_datasets([a], split="100,0,0", sizes=(n, 0, 0), request=REQUEST).train for n in (samples, other)
        )
        assert here is not None and there is not None
        alike = all(np.array_equal(here[i], there[i]) for i in range(min(samples, other)))
        assert alike == (order_differences(order(a, samples=other), told) == [])
