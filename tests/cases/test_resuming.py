"""C45 and C49: a run goes on in another layout, and exactly where it stopped."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from megalite.checkpoint.format import read_index
from megalite.checkpoint.load import read_tensor
from megalite.checkpoint.place import find
from tests.cases.fixtures import COURSE, WHOLE, Materials
from tests.cases.harness import LAYOUTS, Layout, Outcome, Program
from tests.parallel.harness import soak

FEW, HALF = "--tensor-model-parallel-size 2", 10
MOVES: dict[str, Layout] = {
    **LAYOUTS,
    "tp2-dp2": Layout(axes={"tp": 2, "dp": 2}, flags=FEW),
    "tp2-dp2-sharded": Layout(axes={"tp": 2, "dp": 2}, flags=f"{FEW} --use-distributed-optimizer"),
    "dp3": Layout(axes={"dp": 3}),
    "dp3-sharded": Layout(axes={"dp": 3}, flags="--use-distributed-optimizer"),
}
"""With those that C45 goes to and fro between."""


def told(outcome: Outcome) -> list[dict[str, Any]]:
    """All that is logged but speed and memory."""
    assert outcome.status == 0, outcome.said
    speed = ("tokens_per_second", "iteration_time", "tflops_per_rank", "memory_bytes", "time")
    return [{name: value for name, value in record.items() if name not in speed} for record in outcome.records]


C45: list[tuple[str, str, str, str]] = [
    ("tp2-dp2-sharded", "dp3", "tied", "fp32"),
    ("one", "tp2-dp2-sharded", "untied", "bf16"),
]
C45_ALL = [
    (there, here, tied, precision)
    for sharded in ("", "-sharded")
    for there, here in [
        *((f"tp2-dp2{sharded}", here) for here in ("one", "tp2", f"dp2{sharded}", "tp4", f"dp3{sharded}")),
        ("one", f"tp2-dp2{sharded}"),
    ]
    for tied in ("tied", "untied")
    for precision in ("fp32", "bf16")
]


@pytest.mark.parametrize(("there", "here", "tied", "precision"), C45 + [soak(*row) for row in C45_ALL])
def test_c45_another_size(
    program: Program, materials: Materials, tmp_path: Path, there: str, here: str, tied: str, precision: str
) -> None:
    run, _, _ = materials.run(tie_word_embeddings=tied == "tied").partition(" --load")
    course = f"{run} --global-batch-size 12 --lr-warmup-iters 15 --data-path {materials.corpus()} {WHOLE}"
    course += " --bf16" * (precision == "bf16")
    whole = program("one", course)
    begun = program(MOVES[there], course, f"--exit-interval {HALF} --save {tmp_path} --save-interval 100")
    after = [program(MOVES[here], course, f"--load {tmp_path}", again=again) for again in (0, 1)]
    control = program(MOVES[here], course, f"--load {tmp_path} --no-load-optim")
    loss, norm = (1e-4, 1e-3) if precision == "fp32" else (1e-2, 1e-2)
    assert begun.losses + after[0].losses == pytest.approx(whole.losses, rel=loss)
    assert after[0].norms == pytest.approx(whole.norms[HALF:], rel=norm)
    assert [record["consumed_samples"] for record in told(after[0])] == [12 * n for n in range(HALF + 1, 21)]
    assert told(after[0]) == told(after[1])
    assert control.losses != pytest.approx(after[0].losses, rel=loss)


SMALL = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --disable-bias-linear --position-embedding-type rope "
SMALL += "--normalization RMSNorm --swiglu --untie-embeddings-and-output-weights"

C49 = "--hidden-dropout 0.1 --attention-dropout 0.1 --lr-warmup-iters 6 --lr-decay-style cosine --min-lr 1e-5 "
C49 += "--eval-interval 5 --eval-iters 2 --split 80,20,0 --train-iters 20"
STOPS = [("one", 3, ""), ("one", 5, "--bf16"), ("tp2-sp", 10, ""), ("pp2", 19, ""), ("dp2-sharded", 5, "--bf16")]
STOPS_ALL = [
    (layout, stop, precision)
    for layout in ("one", "tp2", "tp2-sp", "pp2", "dp2", "dp2-sharded")
    for stop in (3, 5, 10, 19)
    for precision in ("", "--bf16", "--recompute-granularity full")
]


def state(root: Path) -> Iterable[tuple[str, torch.Tensor]]:
    """Every tensor that was saved last."""
    directory = find(root)
    index = read_index(directory)
    for name in index.tensors:
        yield name, read_tensor(directory, name, index)


@pytest.mark.parametrize(("layout", "stop", "words"), STOPS + [soak(*row) for row in STOPS_ALL if row not in STOPS])
def test_c49_exactly_as_if_it_had_not_stopped(
    program: Program, materials: Materials, tmp_path: Path, layout: str, stop: int, words: str
) -> None:
    course = f"{SMALL} {COURSE} {materials.tokenizer()} --data-path {materials.corpus()} {C49} {words}"
    whole = program(layout, course, f"--save {program.folder}/{layout}{words.replace(' ', '')} --save-interval 100")
    kept = f"--save {tmp_path}/run --save-interval 100 --load {tmp_path}/run"
    before = program(layout, course, kept, f"--exit-interval {stop}")
    after = program(layout, course, kept, "--no-load-rng")
    assert "Accepted, without effect: --no-load-rng (dropout keeps no random state)." in after.said[0]
    assert told(before) + told(after) == told(whole)
    ours, theirs = state(tmp_path / "run"), state(Path(f"{program.folder}/{layout}{words.replace(' ', '')}"))
    for (name, found), (_, expected) in zip(ours, theirs, strict=True):
        assert torch.equal(found, expected), name


def test_c49_a_run_that_is_complete_does_nothing(program: Program, materials: Materials, tmp_path: Path) -> None:
    course = f"{SMALL} {COURSE} {materials.tokenizer()} --data-path {materials.corpus()} {WHOLE} --train-iters 2"
    kept = f"--save {tmp_path} --save-interval 100 --load {tmp_path}"
    first = program("one", course, kept)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = program("one", course, kept, "--log-interval 1")
    assert first.status == again.status == 0 and len(first.losses) == 2 and again.losses == []
    assert "The run is complete after iteration 2: nothing is left to train." in again.said[0]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == stamps
