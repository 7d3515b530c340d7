"""The whole loop in several layouts: what it logs, where it stops, and how it goes on."""

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megalite.checkpoint.format import read_index
from megalite.checkpoint.place import find
from megalite.mesh import ParallelMesh
from megalite.observe.jsonl import read
from megalite.train import loop
from tests.cases.harness import ALL, LAYOUTS, Outcome, Program, in_pool
from tests.pool import Pool

BASE = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 --lr 1e-2 "
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 50 --log-interval 1 --eval-iters 0"
)
RAMP = "--global-batch-size 16 --rampup-batch-size 4 4 40 --train-iters 8"


class Loop:
    """Runs the small job of BASE in a layout."""

    def __init__(self, pool: Pool, folder: Path, cache: Path) -> None:
        self.pool, self.folder, self.program = pool, folder, Program(pool, folder)
        self.base = f"{BASE} --data-cache-path {cache}"

    def __call__(self, layout: str, *words: str) -> Outcome:
        return self.program(layout, self.base, *words)

    def signalled(self, layout: str, *words: str, when: int) -> Outcome:
        """The same, but the last rank gets SIGTERM in iteration `when`."""
        log = self.folder / "signalled.jsonl"
        line = " ".join([LAYOUTS[layout].flags, self.base, *words, f"--device cpu --log-jsonl {log}"])
        ranks = self.pool.run(LAYOUTS[layout].grid, signalled, line.split(), when)
        said = tuple(rank[1] for rank in ranks)
        return Outcome(status=max(rank[0] for rank in ranks), said=said, records=tuple(read(log)))


@pytest.fixture
def program(pool: Pool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Loop:
    return Loop(pool, tmp_path, tmp_path_factory.getbasetemp() / "mock-data")


def signalled(mesh: ParallelMesh, argv: Sequence[str], when: int) -> tuple[int, str]:
    """One rank of the program, and what it gets."""
    sound = loop.train_step

    def train_step(*args: Any, step: int, **more: Any) -> Any:
        if step == when and mesh.rank == mesh.world.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return sound(*args, step=step, **more)

    with patch.object(loop, "train_step", train_step):
        return in_pool(mesh, argv)


def told(records: Sequence[dict[str, Any]], *names: str) -> list[Any]:
    return [tuple(record[name] for name in names) for record in records]


COURSE = ("iteration", "consumed_samples", "global_batch_size", "lm_loss", "grad_norm", "learning_rate")


@pytest.mark.parametrize("layout", ALL)
def test_a_ramp_goes_on_bit_for_bit(program: Loop, tmp_path: Path, layout: str) -> None:
    """From a checkpoint in its middle, with an iteration left out before and one after."""
    skips = "--iterations-to-skip 2 6"
    through = program(layout, RAMP, skips).records
    saved = f"--save {tmp_path}/a --save-interval 100"
    before = program(layout, RAMP, skips, saved, "--exit-interval 3")
    assert "--exit-interval 3: stopped." in before.said[0]
    after = program(layout, RAMP, skips, f"--load {tmp_path}/a")
    assert told(before.records + after.records, *COURSE) == told(through, *COURSE)
    assert told(through, "iteration", "global_batch_size", "consumed_samples", "skipped") == [
        *((1, 4, 4, 0), (3, 4, 12, 1), (4, 4, 16, 1), (5, 8, 24, 1), (7, 12, 44, 2), (8, 16, 60, 2))
    ]


@pytest.mark.parametrize("layout", ["dp2", "tp2-sp"])
def test_a_ramp_is_the_same_in_every_layout(program: Loop, layout: str) -> None:
    one, other = (program(name, RAMP) for name in ("one", layout))
    assert told(one.records, *COURSE[:3]) == told(other.records, *COURSE[:3])
    assert other.losses == pytest.approx(one.losses, rel=1e-5)


def test_a_skipped_iteration_moves_data_but_no_schedule(program: Loop, tmp_path: Path) -> None:
    course = "--global-batch-size 4 --train-iters 6 --lr-warmup-iters 4"
    straight = program("one", course).records
    skipping = program("one", course, f"--iterations-to-skip 2 3 --save {tmp_path}/a --save-interval 6").records
    assert told(skipping, "iteration", "skipped") == [(1, 0), (4, 2), (5, 2), (6, 2)]
    assert [r["learning_rate"] for r in skipping] == [r["learning_rate"] for r in straight][:4]
    scalars = read_index(find(tmp_path / "a")).scalars
    names = ("iteration", "consumed_train_samples", "schedule_samples", "skipped_iterations", "optimizer_step")
    assert [scalars[name] for name in names] == [6, 24, 16, 2, 4]


@pytest.mark.parametrize("layout", ALL)
def test_a_signal_to_one_rank_stops_all(program: Loop, tmp_path: Path, layout: str) -> None:
    course = "--global-batch-size 4 --train-iters 6 --eval-iters 1"
    through = program(layout, course)
    kept = f"--save {tmp_path}/a --save-interval 100 --exit-signal-handler"
    before = program.signalled(layout, course, kept, when=3)
    saved_last = r"saved \S+/iter_0000003 in .* s\n--exit-signal-handler: a rank .* by a signal: stopped.\n$"
    assert before.status == 0
    assert re.search(saved_last, before.said[0])
    after = program(layout, course, f"--load {tmp_path}/a")
    assert before.losses + after.losses == through.losses
    assert after.records[-1] == through.records[-1]


def test_a_signal_breaks_an_evaluation_off(program: Loop, tmp_path: Path) -> None:
    kept = f"--save {tmp_path}/a --save-interval 100 --exit-signal-handler"
    course = "--global-batch-size 4 --train-iters 6 --eval-interval 2 --eval-iters 100000"
    found = program.signalled("dp2", course, kept, when=2)
    assert "The validation loss is left out, since the run is to stop." in found.said[0]
    assert len(found.records) == 2
    assert find(tmp_path / "a").name == "iter_0000002"


@pytest.mark.parametrize("layout", ["one", "dp2"])
def test_the_time_is_over(program: Loop, tmp_path: Path, layout: str) -> None:
    kept = f"--save {tmp_path}/a --save-interval 100 --exit-duration-in-mins 0"
    found = program(layout, "--global-batch-size 4 --train-iters 6", kept)
    assert "--exit-duration-in-mins 0: the time is over: stopped." in found.said[0]
    assert told(found.records, "iteration") == [(1,)]
    assert find(tmp_path / "a").name == "iter_0000001"


def test_skip_train_evaluates_what_is_loaded(program: Loop, tmp_path: Path) -> None:
    course = "--global-batch-size 4 --train-iters 3 --eval-iters 2"
    trained = program("dp2", course, f"--save {tmp_path}/a --save-interval 3").records[-2:]
    evaluated = program("tp2-sp", course, f"--load {tmp_path}/a --skip-train").records
    assert len(evaluated) == 2
    for one, other in zip(trained, evaluated, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
