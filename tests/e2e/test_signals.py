"""C41: asked to stop by SIGTERM. What torchrun makes of its own signal is in docs/train.md."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megalite.checkpoint.format import read_index
from megalite.checkpoint.place import find
from tests.e2e.test_launch import ROOT, TINY, TORCHRUN

Job = subprocess.Popen[str]


def ranks(job: Job) -> list[int]:
    return [
        int(pid) for pid in subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
    ]


def to_torchrun(job: Job) -> None:
    job.send_signal(signal.SIGTERM)


def to_one_rank(job: Job) -> None:
    os.kill(ranks(job)[1], signal.SIGTERM)


def to_all_twice(job: Job) -> None:
    for _ in range(2):
        os.killpg(job.pid, signal.SIGTERM)
        time.sleep(0.3)


def ended(flags: list[str], at: str, send: Callable[[Job], None]) -> tuple[int, str, float]:
    """A job on two ranks, sent a signal once it prints a line like `at`: its status, what it says, the seconds."""
    job = subprocess.Popen(
        [*TORCHRUN, "2", "pretrain_gpt.py", *TINY, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert job.stdout is not None
    before = []
    for line in job.stdout:
        before.append(line)
        if re.match(at, line):
            break
    started = time.monotonic()
    send(job)
    rest = job.communicate(timeout=60)[0]
    return job.returncode, "".join(before) + rest, time.monotonic() - started


@pytest.mark.parametrize(
    ("send", "at", "status", "background"),
    [
        (to_one_rank, r"step +5/", {0}, True),
        (to_torchrun, r"mock data", {1}, False),
        (to_torchrun, r"step +5/", {1}, False),
        # Ranks that end before torchrun looks at its own signal leave it nothing to complain of.
        (to_all_twice, r"saved ", {0, 1}, True),
    ],
    ids=["one rank", "torchrun before the first iteration", "torchrun", "all twice during a save"],
)
def test_the_run_saves_and_ends(
    tmp_path: Path, send: Callable[[Job], None], at: str, status: set[int], background: bool
) -> None:
    saving = "2" if at == "saved " else "1000000"
    flags = [
        "--exit-signal-handler",
        "--save",
        str(tmp_path),
        "--save-interval",
        saving,
        *["--async-save"] * background,
    ]
    code, said, seconds = ended(flags, at, send)
    assert code in status, said
    assert seconds < 30
    assert "a rank was asked to stop by a signal: stopped." in said
    last = max(int(number) for number in re.findall(r"^step +(\d+)/", said, re.MULTILINE))
    directory = find(tmp_path)
    assert directory.name == f"iter_{last:07d}", "not the iteration in hand"
    assert read_index(directory).scalars["iteration"] == last


def test_without_the_flag_it_ends_at_once(tmp_path: Path) -> None:
    code, said, seconds = ended(["--save", str(tmp_path), "--save-interval", "3"], r"saved ", to_torchrun)
    assert code != 0
    assert seconds < 30
    assert "stopped." not in said
    assert read_index(find(tmp_path)).scalars["iteration"] % 3 == 0
