"""Starts the training program in any layout and gathers what a user sees of it.

Ranks come from the pool of the test run, which spares them the import of torch; `torchrun` starts the real thing.
"""

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megalite.checkpoint.stated import stated_model
from megalite.config.cli import parse
from megalite.config.from_checkpoint import with_model_of_checkpoint
from megalite.environment import Launch
from megalite.grid import Grid
from megalite.mesh import ParallelMesh
from megalite.train.run import run
from megalite.validate import check, notices
from tests.pool import Pool

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ranks along each axis, and the flags that ask for them."""

    axes: dict[str, int] = field(default_factory=dict)
    flags: str = ""
    wide: bool = False
    """Only cases which name the layout, and the soak, run in it."""

    @property
    def grid(self) -> Grid:
        return Grid(sizes=self.axes)


LAYOUTS: dict[str, Layout] = {
    "one": Layout(),
    "dp2": Layout(axes={"dp": 2}),
    "tp2": Layout(axes={"tp": 2}, flags="--tensor-model-parallel-size 2", wide=True),
    "tp2-sp": Layout(axes={"tp": 2}, flags="--tensor-model-parallel-size 2 --sequence-parallel"),
    "dp2-sharded": Layout(axes={"dp": 2}, flags="--use-distributed-optimizer --overlap-param-gather", wide=True),
    "pp2": Layout(axes={"pp": 2}, flags="--pipeline-model-parallel-size 2"),
    "tp4": Layout(axes={"tp": 4}, flags="--tensor-model-parallel-size 4", wide=True),
    "pp4": Layout(axes={"pp": 4}, flags="--pipeline-model-parallel-size 4", wide=True),
    "pp2-dp2": Layout(axes={"pp": 2, "dp": 2}, flags="--pipeline-model-parallel-size 2", wide=True),
    "tp2-pp2": Layout(
        axes={"tp": 2, "pp": 2},
        flags="--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2",
        wide=True,
    ),
}
"""A new way to spread a model is a row here, and every case runs in it. The first is what the others must equal."""
ALL = [pytest.param(name, marks=[pytest.mark.soak] if layout.wide else [], id=name) for name, layout in LAYOUTS.items()]
OTHERS = ALL[1:]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is left of a job."""

    status: int
    said: tuple[str, ...]
    """The standard output and error of each rank."""
    records: tuple[dict[str, Any], ...] = ()
    """The lines of --log-jsonl."""
    seconds: float = 0.0

    @property
    def losses(self) -> list[float]:
        return [record["lm_loss"] for record in self.records if "lm_loss" in record]

    @property
    def norms(self) -> list[float]:
        return [record["grad_norm"] for record in self.records if "lm_loss" in record]

    def evaluation(self, split: str = "validation") -> dict[str, Any]:
        """The last evaluation."""
        return [record for record in self.records if f"{split}_loss" in record][-1]


def in_pool(mesh: ParallelMesh, argv: Sequence[str]) -> tuple[int, str]:
    """One rank of the program: exit status, and what it printed."""
    out, parsed = io.StringIO(), with_model_of_checkpoint(parse(argv), stated_model)
    problems = [*parsed.problems, *check(parsed.config, mesh.world.size)]
    if problems:
        return 2, "\n".join(map(str, problems))
    here = Launch(rank=mesh.rank, world_size=mesh.world.size, local_rank=mesh.rank, local_world_size=mesh.world.size)
    joined = patch("megalite.train.run.start", lambda *_, **__: mesh)
    with contextlib.redirect_stdout(out), joined:
        print("\n".join([*parsed.notices, *notices(parsed.config, mesh.world.size)]))
        try:
            run(parsed.config, here)
        except (ValueError, OSError, FloatingPointError) as error:
            return 1, f"{out.getvalue()}\n{error}"
    return 0, out.getvalue()


class Program:
    """Runs a command line once in each layout, however many tests ask for it."""

    def __init__(self, pool: Pool, folder: Path) -> None:
        self.pool, self.folder = pool, folder
        self._known: dict[tuple[str, ...], Outcome] = {}

    def __call__(self, layout: str | Layout, *words: str, torchrun: bool = False, again: int = 0) -> Outcome:
        """`words` are flags and their values, split at spaces; "" is an empty value. `again` runs what was run."""
        where = LAYOUTS[layout] if isinstance(layout, str) else layout
        argv = [part for word in (where.flags, *words) for part in word.split()]
        key = (str(where), "torchrun" * torchrun, str(again), *argv)
        if key not in self._known:
            log = self.folder / f"{len(self._known)}.jsonl"
            argv += ["--log-jsonl", str(log), "--device", "cpu"]
            started = time.monotonic()
            if torchrun:
                done = start([*command(where.grid.world_size), *argv])
                status, said = done.returncode, [done.stdout + done.stderr]
            else:
                ranks = self.pool.run(where.grid, in_pool, argv)
                status, said = max(rank[0] for rank in ranks), [rank[1] for rank in ranks]
            records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            self._known[key] = Outcome(
                status=status, said=tuple(said), records=tuple(records), seconds=time.monotonic() - started
            )
        return self._known[key]


def command(ranks: int) -> list[str]:
    """How a user starts a job of so many ranks."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    return [torchrun, "--standalone", "--nproc-per-node", str(ranks), "pretrain_gpt.py"]


def start(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command at the root of the repository; a case fails cleanly within a minute or not at all."""
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
