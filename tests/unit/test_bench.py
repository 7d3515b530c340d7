"""The speed benchmark runs, and its contestants compute the same: it exits with 2 where they do not."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = "--num-layers 1 --hidden-size 64 --num-attention-heads 2 --seq-length 16 --micro-batch-size 1 --vocab-size 256"


def test_contestants_compute_the_same(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    command = [sys.executable, "benchmarks/train_step.py", *TINY.split(), "--rounds", "1", "--steps", "1"]
    run = subprocess.run(
        [*command, "--heat", "1x1", "--markdown", str(table)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr  # how fast they are is not for a test to say
    assert len(table.read_text().splitlines()) == 2 + 2 * 3, run.stdout
