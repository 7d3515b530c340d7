"""The table that a soak run leaves behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.rules import ROOT

CASES = """
import pytest

@pytest.mark.parametrize("n", [1, 2, 3])
def test_some(n):
    assert n < 3

def test_skipped():
    pytest.skip("a reason")
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_run_leaves_a_table(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    proof = tmp_path / "made" / "soak.md"
    command = [sys.executable, "-m", "pytest", str(tmp_path), "-p", "tests.proof", "--proof", str(proof), *workers]
    run = subprocess.run([*command, "--rootdir", str(tmp_path), "-c", "/dev/null"], cwd=ROOT, capture_output=True)
    assert run.returncode == 1, run.stdout + run.stderr
    said = proof.read_text()
    assert "Not all passed: pytest ended with 1" in said and "commit " in said and "torch " in said
    rows = [[cell.strip() for cell in line.split("|")[1:-2]] for line in said.splitlines() if line.startswith("|")]
    assert rows[0] == ["test", "passed", "failed", "skipped"]
    assert rows[2:] == [
        ["`test_cases.py::test_skipped`", "0", "0", "1"],
        ["`test_cases.py::test_some`", "2", "1", "0"],
        ["together", "2", "1", "1"],
    ]
