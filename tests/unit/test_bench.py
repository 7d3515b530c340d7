"""The speed benchmarks run, and their contestants compute the same: they exit with 2 where they do not."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("reason", ["", "it is not installed"])
def test_a_rival_that_is_not_installed_is_left_out(
    reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("train_step")
    monkeypatch.setattr(bench, "reason_absent", lambda: reason)
    (heat,) = bench.present([bench.HEATS["tp2"]])
    rivals = ["DTensor TP", *(["megatron-core TP"] if not reason else []), "DTensor TP + SP"]
    assert [theirs for _, theirs, _ in heat.pairs] == rivals
    assert capsys.readouterr().err == (f"megatron-core TP is left out: {reason}\n" if reason else "")


def test_pipelines_compute_the_same(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    sizes = "--hidden-size 64 --num-attention-heads 2 --seq-length 16 --micro-batch-size 1 --vocab-size 256"
    run = subprocess.run(
        [sys.executable, "benchmarks/pipeline.py", *sizes.split(), "--rounds", "1", "--steps", "1"]
        + ["--schedule", "zb-v", "--bubble-steps", "1", "--markdown", str(table)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    assert len(table.read_text().splitlines()) == (2 + 2) + 1 + (2 + 1), run.stdout


@pytest.mark.soak
def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    run = subprocess.run(
        [sys.executable, "benchmarks/checkpoint.py", "--megabytes", "1", "--hidden-size", "64", "--rounds", "1"]
        + ["--folder", str(tmp_path / "disk"), "--markdown", str(table)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    rows = [line.split("|")[1].strip() for line in table.read_text().splitlines() if line]
    assert [name for name in rows if name and "---" not in name] == [
        *("raw", "megalite", "torch.save", "safetensors", "DCP", "load, warm", "plain"),
        *(f"2 parts of {kind} -> whole" for kind in ("rows", "columns")),
        *(f"whole -> 2 parts of {kind}" for kind in ("rows", "columns")),
        *("held up by", "memcpy", "--async-save"),
    ]
    assert not (tmp_path / "disk").exists()


@pytest.mark.soak
def test_optimizers_compute_the_same(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    run = subprocess.run(
        [sys.executable, "benchmarks/optimizer.py", *TINY.split(), "--rounds", "1", "--steps", "1", "--threads", "1"]
        + ["--micro-batch-size", "4", "--offload-layers", "1", "--dir", str(tmp_path), "--markdown", str(table)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    kept = [
        line.split("|")[1:4] for line in table.read_text().splitlines() if line.startswith(("| megalite DP", "| torch"))
    ]
    assert [held for _, held, _ in kept] == [computed for _, _, computed in kept], "a rank keeps what is computed"
    assert len(kept) == 5
