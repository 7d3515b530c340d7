"""C43: SIGKILL at random moments, of one rank or of all, while checkpoints are written: what is named is whole, and a
run that resumes is the run."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from megalite.checkpoint.place import TRACKER
from tests.parallel.harness import soak
from tests.parallel.killing import Job, check_named

MODEL = (
    "--num-layers 2 --hidden-size {hidden} --num-attention-heads 4 --seq-length 16 --micro-batch-size 1 "
    "--global-batch-size 4 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 64 --eval-iters 0 "
    "--log-interval 1 --device cpu --train-iters {steps} --hidden-dropout 0.1"
)
LAYOUTS = {
    "tp2": ({"tp": 2}, "--tensor-model-parallel-size 2"),
    "pp2-dp2-sharded": ({"pp": 2, "dp": 2}, "--pipeline-model-parallel-size 2 --use-distributed-optimizer"),
}
STEPS = 12


def losses(log: Path) -> dict[int, float]:
    """The loss of each iteration; what was computed again must be the same again."""
    found: dict[int, float] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line in hand at a kill
        if "lm_loss" in record:
            assert found.setdefault(record["iteration"], record["lm_loss"]) == record["lm_loss"]
    return found


@contextmanager
def watched(root: Path) -> Iterator[None]:
    """Look all the time at what the tracker names: it may never be half-made, not even for a moment."""
    over, wrong = Event(), list[str]()

    def named() -> str:
        return (root / TRACKER).read_text() if (root / TRACKER).exists() else ""

    def watch() -> None:
        seen = ""
        while not over.wait(0.002):
            if (now := named()) == seen:
                continue
            try:
                check_named(root, deeply=False)
            except (AssertionError, ValueError, OSError) as error:
                if named() == now:  # else it was named no longer when it was looked at
                    wrong.append(str(error))
            seen = now

    thread = Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("layout", "hidden", "kills"),
    [("tp2", 64, 5), soak("tp2", 64, 80), soak("pp2-dp2-sharded", 64, 80), soak("tp2", 512, 40)],
)
def test_what_is_named_is_whole_and_goes_on(tmp_path: Path, layout: str, hidden: int, kills: int) -> None:
    sizes, flags = LAYOUTS[layout]
    argv = f"{MODEL.format(hidden=hidden, steps=STEPS)} {flags}".split()
    with Job(tmp_path / "unbroken", [*argv, "--log-jsonl", str(tmp_path / "unbroken.jsonl")], sizes) as job:
        assert job.wait() == [0] * len(job.ranks)
    expected = losses(tmp_path / "unbroken.jsonl")
    assert len(expected) == STEPS

    rng, hits, reached, course, number = random.Random(kills), Counter[tuple[bool, ...]](), STEPS, 0, 0
    while hits.total() < kills or reached < STEPS:
        if reached == STEPS:  # start anew
            course += 1
            root, log = tmp_path / f"saved-{course}", tmp_path / f"{course}.jsonl"
            root.mkdir()
        number += 1
        background, all_of_them = rng.random() < 0.5, rng.random() < 0.5
        words = [*argv, "--save", str(root), "--load", str(root), "--save-interval", "1", "--log-jsonl", str(log)]
        words += ["--async-save"] * background + rng.choice([[], ["--save-retain-last", "2"]])
        before, logged = check_named(root, deeply=True), log.stat().st_size if log.exists() else 0
        with watched(root), Job(tmp_path / f"job-{number}", words, sizes) as job:
            while job.is_running and (not log.exists() or log.stat().st_size == logged):
                time.sleep(0.001)
            if hits.total() < kills:
                time.sleep(rng.uniform(0, 0.3))
                if rng.random() < 0.7:  # in a save, at any moment of it
                    while job.is_running and not list(root.glob(".iter_*.saving")):
                        time.sleep(0.001)
                    time.sleep(rng.uniform(0, 0.02))
                saving = bool(list(root.glob(".iter_*.saving")))
                if job.kill(range(len(job.ranks)) if all_of_them else [rng.randrange(len(job.ranks))]):
                    hits[background, all_of_them, saving] += 1
            ended = job.wait()
        reached = check_named(root, deeply=True)
        assert reached >= before
        if ended == [0] * len(ended):
            assert reached == STEPS
            assert losses(log) == expected
            assert not [path.name for path in root.iterdir() if path.name.startswith(".")]
    assert sum(count for (*_, saving), count in hits.items() if saving) >= kills // 4, hits
