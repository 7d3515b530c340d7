"""The text of --dry-run, and the front door itself, as a user without torchrun sees them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --micro-batch-size 2 --train-iters 100 "
    "--global-batch-size 40 --lr 1e-3 --lr-warmup-fraction 0.1 --mock-data --tokenizer-type NullTokenizer "
    "--vocab-size 1000 --tensor-model-parallel-size 2 --sequence-parallel --hidden-dropout 0 --use-mcore-models"
)
ARGV = SETTINGS.split()


def front(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "pretrain_gpt.py", *argv],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_dry_run_says_what_the_settings_amount_to():
    done = front(*ARGV, "--dry-run", WORLD_SIZE="4")
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "Accepted, without effect: --use-mcore-models (there is one model implementation).",
        "  hidden_dropout             = 0.0              from the command line, instead of 0.1",
        "  tp 2: [0 1] [2 3]",
        "  dp 2: [0 2] [1 3]",
        "  40 sequences = micro-batch 2 x data parallel 2 x 10 micro-batches",
        "  5,120 tokens a step, 100 steps, 512,000 tokens in all",
        "  4,000 samples: warm-up ends after 400, decay after 4,000",
        "  937,728 parameters, 480,256 on each rank",
        "  parameters 1.832 MiB, main parameters 0 B, main gradients 1.832 MiB, moments 3.664 MiB",
        "  tp: 280 x all-gather, 33.81 MiB",
        "  tp: 180 x reduce-scatter, 22.5 MiB",
        "  tp: 1 x all-reduce, 77 KiB",
        "  dp: 1 x all-reduce, 1.832 MiB",
        "  ... 10 micro-batches in all",
    ):
        assert line in done.stdout.splitlines()
    assert "F0.0 B0.0 F0.1 B0.1" in done.stdout


def test_other_ranks_are_silent():
    done = front(*ARGV, "--dry-run", WORLD_SIZE="4", RANK="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_print_config_is_a_configuration(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(front(*ARGV, "--print-config", WORLD_SIZE="2").stdout)
    again = front("--config", str(file), "--print-config", WORLD_SIZE="2")
    assert again.returncode == 0
    assert again.stdout == file.read_text()


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["--help", "--nonsense"]])
def test_help_needs_nothing_else(argv):
    done = front(*argv)
    assert done.returncode == 0
    assert "--num-layers N" in done.stdout


def test_launcher_variables_are_read_or_refused():
    assert "--tensor-model-parallel-size 2 does not divide the world size 3" in front(*ARGV, WORLD_SIZE="3").stderr
    assert "WORLD_SIZE='three' is not a whole number" in front(*ARGV, WORLD_SIZE="three").stderr
