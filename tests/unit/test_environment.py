"""What is read of the environment, and what is made of it."""

import json
from pathlib import Path

import pytest

from megalite.environment import Launch, compute_threads, fail, launch


def test_a_plain_run_is_rank_0_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert launch() == Launch()
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK='first' is not a whole number"):
        launch()


@pytest.mark.parametrize(
    ("named", "ranks", "asked", "threads"),
    [
        (None, 1, None, 8),
        ("3", 1, None, 3),
        ("1", 1, None, 1),  # somebody's wish: torchrun says nothing to a single rank
        ("1", 2, None, 4),  # torchrun's own
        ("1", 16, None, 1),
        ("3", 2, None, 3),
        ("3", 2, 5, 5),
        (None, 2, None, 4),
        ("4,2", 2, None, 4),  # levels of nesting: not for us to read
    ],
)
def test_threads(
    monkeypatch: pytest.MonkeyPatch, named: str | None, ranks: int, asked: int | None, threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if named is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert compute_threads(Launch(world_size=ranks, local_world_size=ranks), asked) == threads


def test_a_failure_is_told_to_the_launcher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = Launch(error_file=str(tmp_path / "error.json"))
    assert fail(here, "program", "it broke", status=3) == 3
    assert capsys.readouterr().err == "program: it broke\n"
    assert json.loads((tmp_path / "error.json").read_text())["message"] == "program: it broke"
