"""What a run does besides training is really switched on by its flags."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from megalite.config.cli import parse
from megalite.environment import Launch
from megalite.train import run as program
from megalite.train.chores import every
from megalite.train.resume import Progress

TINY = (
    "--num-layers 1 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --micro-batch-size 1 --train-iters 4 "
    "--lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 20 --eval-iters 0 --log-interval 1"
)


def while_training(flags: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What holds while the run trains."""
    found: dict[str, Any] = {}
    sound = program.train

    def look(session: Any, progress: Progress) -> None:
        found["gc"] = gc.isenabled()
        found["deterministic"] = torch.are_deterministic_algorithms_enabled()
        found["chores"] = len(session.chores)
        sound(session, progress)

    monkeypatch.setattr(program, "train", look)
    program.run(parse(f"{TINY} --data-cache-path {tmp_path} {flags}".split()).config, Launch())
    return found


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"gc": True, "deterministic": False, "chores": 0}),
        ("--manual-gc", {"gc": False, "deterministic": False, "chores": 0}),
        ("--manual-gc --manual-gc-interval 2", {"gc": False, "deterministic": False, "chores": 1}),
        ("--deterministic-mode", {"gc": True, "deterministic": True, "chores": 0}),
        (
            "--check-weight-hash-across-dp-replicas-interval 2",
            {"gc": True, "deterministic": False, "chores": 1},
        ),
    ],
)
def test_flags_switch_on_what_they_say(
    flags: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert while_training(flags, monkeypatch, tmp_path) == expected
    assert gc.isenabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_chore_has_its_turns() -> None:
    turns: list[int] = []
    chore = every(3, lambda progress: turns.append(progress.iteration))
    for iteration in range(1, 10):
        chore(Progress(iteration=iteration))
    assert turns == [3, 6, 9]
