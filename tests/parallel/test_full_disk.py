"""A disk that is full or cannot be written: the run goes on and says so, what was saved stays, and the run resumes."""

import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from megalite.checkpoint.place import TRACKER
from tests.parallel.harness import soak
from tests.parallel.killing import Job, Step, check_named, read_only, short_files, small_disk
from tests.parallel.test_kills import LAYOUTS, MODEL, losses

STEPS = 6
SIZES, TP2 = LAYOUTS["tp2"]


def full(root: Path, rank: int) -> None:
    """Room for two checkpoints, and for a part of a third."""
    small_disk(root, 3_200_000)


def tiny(root: Path, rank: int) -> None:
    """Not even room for one."""
    small_disk(root, 600_000)


def lost(root: Path, rank: int) -> None:
    """A disk that turns read-only once a checkpoint is named."""
    small_disk(root, 20_000_000)

    def turn() -> None:
        while True:
            time.sleep(0.001)
            if (root / TRACKER).exists():
                with suppress(OSError):  # a file is open for writing
                    return read_only(root)

    threading.Thread(target=turn, daemon=True).start()


def short(root: Path, rank: int) -> None:
    """One rank's quota is used up."""
    if rank == 1:
        short_files(100_000)


def keep(root: Path, left: Path, rank: int) -> None:
    """What is on the disk is seen by the ranks alone."""
    if rank == 0:
        shutil.copytree(root, left)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is wrong with a disk."""

    breaks: Step
    ranks: int
    told: str
    named: set[int]
    """Iterations that may be the last one saved."""


CASES = {
    "full": Case(breaks=full, ranks=1, told="No space left on device", named={2}),
    "tiny": Case(breaks=tiny, ranks=1, told="No space left on device", named={0}),
    "read-only": Case(breaks=lost, ranks=1, told="Read-only file system", named={1, 2, 3, 4, 5}),
    "quota of one rank": Case(breaks=short, ranks=2, told="rank 1: [Errno 27] File too large", named={0}),
}


@pytest.mark.parametrize(
    ("name", "background"),
    [("full", True), ("tiny", False), ("read-only", False), ("quota of one rank", True)]
    + [soak("full", False), soak("tiny", True), soak("read-only", True), soak("quota of one rank", False)],
)
def test_a_disk_that_fails_costs_no_training(tmp_path: Path, name: str, background: bool) -> None:
    case = CASES[name]
    sizes, flags = (SIZES, TP2) if case.ranks == 2 else ({}, "")
    argv = f"{MODEL.format(hidden=64, steps=STEPS)} {flags} --save-interval 1".split()
    root, left, log = tmp_path / "disk", tmp_path / "left", tmp_path / "log.jsonl"
    root.mkdir()
    words = [*argv, "--save", str(root), "--log-jsonl", str(log), *["--async-save"] * background]
    with Job(tmp_path / "job", words, sizes, before=partial(case.breaks, root), after=partial(keep, root, left)) as job:
        ended = job.wait()
    said = job.said()
    if "no file system can be mounted here" in said:
        pytest.skip(said)
    assert ended == [1] * case.ranks, said  # the last save counts
    assert len(losses(log)) == STEPS
    named = check_named(left, deeply=True)
    assert named in case.named
    failures = [line for line in said.splitlines() if "could not be saved; earlier checkpoints stay" in line]
    assert len(failures) == STEPS - named and all(case.told in line for line in failures), said
    assert [line.endswith("Training goes on.") for line in failures] == [True] * (STEPS - named - 1) + [False]
    assert f"step {STEPS}/{STEPS}" in said
    if name != "read-only":  # where nothing can be removed either
        assert not [path.name for path in left.iterdir() if path.name.startswith(".")]

    again = tmp_path / "again.jsonl"
    words = [*argv, "--save", str(left), "--load", str(left), "--log-jsonl", str(again)]
    with Job(tmp_path / "resumed", words, sizes) as job:
        assert job.wait() == [0] * case.ranks, job.said()
    assert check_named(left, deeply=True) == STEPS
    assert losses(again) == {step: loss for step, loss in losses(log).items() if step > named}
