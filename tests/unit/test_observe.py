"""Sinks: what a reader sees, what a machine reads."""

import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from megalite.observe import jsonl
from megalite.observe.console import CLEAR, Console
from megalite.observe.jsonl import Jsonl
from megalite.observe.memory import peak_resident_bytes
from megalite.observe.record import EvaluationRecord, Logger, Sink, TrainRecord
from megalite.observe.tensorboard import TensorBoard


def record(**changes: Any) -> TrainRecord:
    values: dict[str, Any] = {
        "iteration": 40,
        "train_iters": 100,
        "consumed_samples": 640,
        "global_batch_size": 16,
        "lm_loss": 4.25,
        "grad_norm": 0.5,
        "learning_rate": 3.5e-3,
        "tokens_per_second": 7012.4,
        "iteration_time": 1.5,
        "tflops_per_rank": 0.01,
        "memory_bytes": 2**20,
        "skipped": 0,
    }
    return TrainRecord(**(values | changes))


EVALUATION = EvaluationRecord(iteration=40, split="validation", loss=4.0, tokens=20480)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines() -> None:
    out = io.StringIO()
    console = Console(out)
    console.train(record())
    console.evaluation(EVALUATION)
    console.train(record(iteration=50, skipped=2))
    console.close()
    first, second, third = out.getvalue().splitlines()
    assert first == "step  40/100 | loss 4.2500 | grad norm 0.500 | lr 3.500e-03 | 7,012 tokens/s | ETA 0:01:30"
    assert second == "step 40: validation loss 4.0000, perplexity 54.6, 20,480 tokens"
    assert third.endswith("ETA 0:01:15 | skipped 2")


def test_terminal_keeps_one_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = Terminal()
    console = Console(out)
    console.train(record(iteration=10))
    console.train(record(iteration=20))
    assert out.getvalue().count(CLEAR) == 2 and "\n" not in out.getvalue()
    console.note("saved")
    assert out.getvalue().endswith(CLEAR + "saved\n")
    console.train(record(iteration=30))
    console.evaluation(EVALUATION)
    console.close()
    shown = [re.sub(".*" + re.escape(CLEAR), "", line) for line in out.getvalue().split("\n")]
    assert [line[:9] for line in shown] == ["saved", "step  30/", "step 40: ", ""]


def test_terminal_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    Console(out).train(record())
    assert len(out.getvalue().removeprefix(CLEAR)) == 39


def test_jsonl_objects(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    for iteration in (10, 20):  # two runs append to one file
        sink = Jsonl(path)
        sink.train(record(iteration=iteration, grad_norm=math.inf))
        sink.evaluation(EVALUATION)
        sink.close()
    train, evaluation, second, _ = (json.loads(line) for line in path.read_text().splitlines())
    assert list(train) == [
        *("iteration", "consumed_samples", "global_batch_size", "lm_loss", "grad_norm", "learning_rate"),
        *("tokens_per_second", "iteration_time", "tflops_per_rank", "memory_bytes", "skipped"),
    ]
    assert train["lm_loss"] == 4.25 and train["grad_norm"] is None and second["iteration"] == 20
    assert evaluation == {"iteration": 40, "validation_loss": 4.0, "perplexity": math.exp(4.0), "tokens": 20480}


def test_jsonl_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"iteration": 1}\n{"iterat')
    sink = Jsonl(path)
    sink.evaluation(EVALUATION)
    sink.close()
    assert [entry["iteration"] for entry in jsonl.read(path)] == [1, 40]


def test_tensorboard_tags(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    sink.train(record())
    sink.evaluation(EVALUATION)
    sink.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"lm loss", "grad-norm", "learning-rate", "lm loss validation"} <= set(events.Tags()["scalars"])
    assert [(event.step, event.value) for event in events.Scalars("lm loss")] == [(40, 4.25)]


def test_tensorboard_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r'pip install "megalite\[log\]"'):
        TensorBoard(tmp_path)


def test_logger_hands_on_everything() -> None:
    heard: list[str] = []

    class Ear(Sink):
        def train(self, record: TrainRecord) -> None:
            heard.append("train")

        def evaluation(self, record: EvaluationRecord) -> None:
            heard.append("evaluation")

        def note(self, text: str) -> None:
            heard.append(text)

        def close(self) -> None:
            heard.append("close")

    logger = Logger([Ear(), Sink(), Ear()])
    logger.train(record())
    logger.evaluation(EVALUATION)
    logger.note("saved")
    logger.close()
    assert heard == ["train"] * 2 + ["evaluation"] * 2 + ["saved"] * 2 + ["close"] * 2


def test_memory_grows_with_what_is_held() -> None:
    before = peak_resident_bytes()
    held = bytearray(before + 2**26)
    assert len(held) <= peak_resident_bytes() < 2**40


def test_perplexity_of_a_broken_run_is_infinite() -> None:
    assert EvaluationRecord(iteration=1, split="test", loss=1e6, tokens=1).perplexity == math.inf
