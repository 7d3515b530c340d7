"""A pytest plugin that writes what a run has shown as Markdown: `pytest -m soak -p tests.proof --proof FILE`.

A row for each test function: its cases by outcome, and the time that they took. The commit, the machine and the
command stand above, so that a reader can tell what the table is of, and repeat it.
"""

import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Row:
    """The cases of one test function."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Proof:
    """Counts reports, and writes the table once the session ends."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, defaultdict[str, Row](Row)
        self.commit = commit()
        """As the run begins: it may last long enough for another to be made."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows[report.nodeid.partition("[")[0]]
        row.seconds += report.duration
        # What fails or skips before the call has no report of the call.
        if report.when == "call" or report.outcome != "passed":
            row.outcomes[report.outcome] += 1

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(
            "\n".join([*heading(self.commit, exitstatus), "", *table(self.rows), ""]), encoding="utf-8"
        )


def heading(commit: str, status: int) -> list[str]:
    """What was run, of what, where and when."""
    now = datetime.datetime.now(datetime.UTC)
    verdict = "Every case passed." if status == 0 else f"**Not all passed: pytest ended with {status}.**"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return [
        "# Soak",
        "",
        f"`python -m pytest {shlex.join(sys.argv[1:])}` on {now:%Y-%m-%d}, at {commit}: "
        f"{os.cpu_count()} cores ({platform.machine()}), {versions}.",
        "",
        verdict,
    ]


def commit() -> str:
    """The commit of the working tree, and whether the tree is its."""
    name = git("rev-parse", "--short", "HEAD")
    dirty = [line for line in git("status", "--porcelain").splitlines() if "docs/proof/" not in line]
    return f"commit {name}" + (f" with uncommitted changes in {len(dirty)} files" if dirty else "")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def table(rows: dict[str, Row]) -> list[str]:
    """A line for each test function, and their sum."""
    total = Row(
        outcomes=sum((row.outcomes for row in rows.values()), Counter()),
        seconds=sum(row.seconds for row in rows.values()),
    )
    named = {f"`{name}`": row for name, row in sorted(rows.items())} | {"together": total}
    lines = [
        f"| {name} | {' | '.join(str(row.outcomes[outcome]) for outcome in OUTCOMES)} | {row.seconds:.0f} |"
        for name, row in named.items()
    ]
    return [f"| test | {' | '.join(OUTCOMES)} | seconds |", f"|---{'|---:' * (len(OUTCOMES) + 1)}|", *lines]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proof", type=Path, help="write a table of this run, as Markdown")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--proof")
    if path is not None and not hasattr(config, "workerinput"):  # one table, of what all of pytest-xdist's workers ran
        config.pluginmanager.register(Proof(path.absolute()))
