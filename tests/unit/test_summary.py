"""The text of --dry-run, and the front door itself, as a user without torchrun sees them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megalite.arith.kept import Kept
from megalite.plan.activations import most_at_once, most_between, most_saved
from megalite.schedule.schedules import make_schedule

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
        "  dp: 2 x all-reduce, 1.832 MiB",
        "  ... 10 micro-batches in all",
    ):
        assert line in done.stdout.splitlines()
    assert "F0.0 B0.0 F0.1 B0.1" in done.stdout


PIPELINE = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 5 --sequence-parallel --split 1,1,1"
)


def test_dry_run_shows_the_pipeline():
    done = front(*ARGV, *PIPELINE.split(), "--dry-run", WORLD_SIZE="8")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for line in (
        "  8 ranks, order tp-cp-ep-dp-pp",
        "  pp 2: [0 4] [1 5] [2 6] [3 7]",
        "  stage 0: embedding, layers 0-2 (pipeline rank 0)",
        "  stage 1: layers 3-4, loss (pipeline rank 1)",
        "  40 sequences = micro-batch 2 x data parallel 2 x 10 micro-batches",
        "  rank 0   01..aa2bb3cc4dd5ee6ff7gg.hh",
        "  ... 10 micro-batches in all: bubble 9.1%",
    ):
        assert line in lines
    text = done.stdout
    for words in (
        "most on pipeline rank 0:",
        "pipeline rank 0: 380,480 parameters, micro-batches in flight 2, together about",
        "pipeline rank 1: 264,832 parameters, micro-batches in flight 1, together about",
        "pp: 10 x send, 640 KiB; pp: 10 x recv, 640 KiB; ends of pp: 1 x all-reduce, 256 KiB; dp: 2 x all-reduce",
    ):
        assert words in text


def test_dry_run_says_where_the_vocabulary_decides(tmp_path):
    for name in ("vocab", "merges"):
        (tmp_path / name).touch()
    files = f"--tokenizer-type GPT2BPETokenizer --vocab-file {tmp_path}/vocab --merge-file {tmp_path}/merges"
    for layers, told in ((7, "stages (about: the size of the vocabulary moves layers):"), (6, "stages:")):
        done = front(*ARGV, *PIPELINE.split(), *files.split(), "--num-layers", str(layers), "--dry-run", WORLD_SIZE="8")
        assert told in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schedule", "saved", "between"),
    [
        ("gpipe", [6, 6, 6, 6], [0, 0, 0, 0]),
        ("1f1b", [4, 3, 2, 1], [0, 0, 0, 0]),
        ("zb-h1", [4, 3, 2, 1], [1, 2, 3, 4]),
        ("zb-v", [7, 8, 8, 8], [1, 3, 5, 7]),
    ],
)
def test_a_rank_keeps_what_is_in_flight(schedule, saved, between):
    chunks = 2 if schedule == "zb-v" else 1
    programs = make_schedule(schedule, num_ranks=4, num_micro_batches=6, num_chunks=chunks)
    stages = dict.fromkeys(range(8), Kept(after_forward=10, in_backward=0, to_weights=7))
    assert [most_saved(program, stages) for program in programs] == [10 * k for k in saved]
    assert [most_between(program, stages) for program in programs] == [7 * k for k in between]
    for program in programs:
        most = most_at_once(program, stages, dict.fromkeys(range(8), 0))
        assert most_saved(program, stages) <= most <= most_saved(program, stages) + most_between(program, stages)


def test_what_is_computed_again_is_there_in_backward():
    [program] = make_schedule("1f1b", num_ranks=1, num_micro_batches=2, num_chunks=1)
    assert most_saved(program, {0: Kept(after_forward=10, in_backward=25)}) == 25


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
