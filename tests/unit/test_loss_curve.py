"""The loss curve: parts and seams of a resumed run, and a real image."""

import json
import sys
from pathlib import Path

import pytest

from megalite.report import loss_curve
from tools import plot_loss


def write(path: Path, *records: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    first = write(
        tmp_path / "tp2.jsonl",
        *({"iteration": i, "lm_loss": 6.0 - i / 10} for i in (1, 2, 3)),
        {"iteration": 3, "validation_loss": 5.0},
    )
    second = write(
        tmp_path / "dp2.jsonl",
        {"iteration": 4, "lm_loss": 5.0},
        {"iteration": 5, "lm_loss": None},
        {"iteration": 4, "lm_loss": 4.9},
        {"iteration": 5, "lm_loss": 4.8},
        {"iteration": 5, "validation_loss": 4.5},
    )
    return [first, second]


def test_parts_of_a_resumed_log(logs: list[Path]) -> None:
    parts = [part for path in logs for part in loss_curve.read_parts(path)]
    assert [part.label for part in parts] == ["tp2", "dp2", "dp2, resumed"]
    assert parts[0].train == [(1, 5.9), (2, 5.8), (3, 5.7)] and parts[0].validation == [(3, 5.0)]
    assert parts[1].train == [(4, 5.0)]
    assert parts[2].train == [(4, 4.9), (5, 4.8)] and parts[2].validation == [(5, 4.5)]


def test_image(logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "new" / "loss.png"
    assert plot_loss.main([*map(str, logs), "--output", str(image), "--level", "bigram=4.03"]) == 0
    assert image.read_bytes().startswith(b"\x89PNG") and str(image) in capsys.readouterr().out


@pytest.mark.parametrize(("missing", "says"), [("no.jsonl", "no.jsonl"), ("empty.jsonl", "No loss is logged")])
def test_mistakes(missing: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "empty.jsonl")
    with pytest.raises(SystemExit):
        plot_loss.main([str(tmp_path / missing), "--output", str(tmp_path / "x.png")])
    assert says in capsys.readouterr().err


def test_says_what_to_install(logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r'pip install "megalite\[plot\]"'):
        loss_curve.draw(logs, image=tmp_path / "x.png", title="", levels={})
