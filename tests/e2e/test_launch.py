"""The program under torchrun: wrong settings and failures, as a user meets them."""

import os
import re
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from tests.parallel.harness import soak

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node"]
TINY = [
    "--num-layers",
    "2",
    "--hidden-size",
    "32",
    "--num-attention-heads",
    "4",
    "--seq-length",
    "16",
    "--micro-batch-size",
    "1",
    "--global-batch-size",
    "4",
    "--train-iters",
    "1000000",
    "--lr",
    "1e-3",
    "--mock-data",
    "--tokenizer-type",
    "NullTokenizer",
    "--vocab-size",
    "100",
    "--log-interval",
    "1",
    "--eval-iters",
    "0",
]
WRONG = "--num-layers 2 --hiden-size 32 --num-attention-heads 3 --lr 1e-3 --min-lr 1 --pipeline-model-parallel-size 2"

FAILING = """
import os, sys
sys.path.insert(0, {root!r})
import pretrain_gpt
from megalite.train import loop

sound = loop.train_step

def fails(*args, step, **more):
    if step == 3 and os.environ["RANK"] == "1":
        raise {error}
    return sound(*args, step=step, **more)

loop.train_step = fails
sys.exit(pretrain_gpt.main())
"""


def run(command: list[str]) -> tuple[subprocess.CompletedProcess[str], float]:
    started = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    return result, time.monotonic() - started


def test_wrong_settings_are_listed_at_once_and_before_torch() -> None:
    result, seconds = run([sys.executable, "pretrain_gpt.py", *WRONG.split()])
    assert result.returncode == 2
    assert seconds < 1
    for flag in ("--hiden-size", "--min-lr", "--pipeline-model-parallel-size", "--seq-length", "--micro-batch-size"):
        assert flag in result.stderr
    assert "Traceback" not in result.stderr


def test_wrong_settings_are_told_once_by_many_ranks(tmp_path: Path) -> None:
    (tmp_path / "empty.py").touch()
    _, empty = run([*TORCHRUN, "2", str(tmp_path / "empty.py")])
    result, seconds = run([*TORCHRUN, "2", "pretrain_gpt.py", *WRONG.split()])
    assert result.returncode != 0
    assert seconds < empty + 2
    before_torchrun_speaks = result.stderr.partition("ChildFailedError")[0]
    assert before_torchrun_speaks.count("is unknown. Did you mean --hidden-size?") == 1


LAYOUTS = {"dp2": "", "tp2": "--tensor-model-parallel-size 2", "pp2": "--pipeline-model-parallel-size 2"}


OURS = ('ValueError("--made-up 3 is wrong")', "rank 1: --made-up 3 is wrong")
OTHER = ("RuntimeError('broken')", "broken")
FAILURES = list(product(LAYOUTS, (OURS, OTHER)))
SHOWN = [("dp2", OTHER), ("tp2", OURS), ("pp2", OTHER)]


@pytest.mark.parametrize(("layout", "failure"), SHOWN + [soak(*case) for case in FAILURES if case not in SHOWN])
def test_one_ranks_failure_ends_the_job_with_its_cause_last(
    tmp_path: Path, layout: str, failure: tuple[str, str]
) -> None:
    error, said = failure
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format(root=str(ROOT), error=error))
    result, seconds = run([*TORCHRUN, "2", str(script), *TINY, *LAYOUTS[layout].split()])
    assert result.returncode != 0
    assert seconds < 40
    root_cause = result.stderr.rpartition("Root Cause")[2]
    assert said in root_cause, result.stderr[-3000:]
    assert "rank      : 1" in root_cause
    assert "a communication of group" not in result.stderr, "the victim spoke too"


@pytest.mark.parametrize("layout", ["tp2", "pp2"])
def test_a_killed_rank_ends_the_job(layout: str) -> None:
    job = subprocess.Popen(
        [*TORCHRUN, "2", "pretrain_gpt.py", *TINY, *LAYOUTS[layout].split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    assert job.stdout is not None
    for line in job.stdout:
        if re.match(r"step +3/", line):
            break
    children = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[1]), signal.SIGKILL)
    started = time.monotonic()
    rest = job.communicate(timeout=60)[0]
    assert job.returncode != 0
    assert time.monotonic() - started < 30
    assert "Signal 9 (SIGKILL)" in rest
