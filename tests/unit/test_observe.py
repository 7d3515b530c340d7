"""Sinks: what a reader sees, what a machine reads."""

import errno
import io
import json
import math
import re
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megalite.grid import Grid
from megalite.mesh import build_mesh
from megalite.observe import jsonl
from megalite.observe.console import CLEAR, Console
from megalite.observe.jsonl import Jsonl
from megalite.observe.memory import peak_resident_bytes
from megalite.observe.progress import ProgressFile
from megalite.observe.record import EvaluationRecord, Logger, Sink, StepRecord, TrainRecord
from megalite.observe.tensorboard import TensorBoard, evaluation_scalars, step_scalars, train_scalars
from megalite.observe.timers import Timers
from megalite.observe.wandb import WeightsAndBiases
from megalite.train.meter import Meter
from megalite.train.resume import Progress
from megalite.train.step import StepResult


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


def steps(*iterations: int) -> list[StepRecord]:
    return [
        StepRecord(iteration=i, global_batch_size=16, lm_loss=i / 8, grad_norm=0.5, learning_rate=0.1)
        for i in iterations
    ]


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


def test_statistics_and_times_are_shown() -> None:
    times = {"forward-backward": (0.25, 0.5), "optimizer": (0.125, 0.0625)}
    for which, shown in {
        "max": "  ms: forward-backward 500.00 | optimizer 125.00",
        "minmax": "  ms: forward-backward 250.00 to 500.00 | optimizer 62.50 to 125.00",
        "all": "  ms: forward-backward 250.00 500.00 | optimizer 125.00 62.50",
    }.items():
        out = io.StringIO()
        Console(out, times=which).train(record(times=times, statistics={"params_norm": 12.5, "num_zeros": 3}))
        first, second = out.getvalue().splitlines()
        assert first.endswith("ETA 0:01:30 | params norm 12.5 | num zeros 3")
        assert second == shown


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
    sink = TensorBoard(tmp_path, interval=2)
    for step in steps(38, 39, 40):
        sink.step(step)
    sink.train(record())
    sink.evaluation(EVALUATION)
    sink.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"lm loss", "grad-norm", "learning-rate", "lm loss validation"} <= set(events.Tags()["scalars"])
    assert [(event.step, event.value) for event in events.Scalars("lm loss")] == [(38, 4.75), (40, 5.0)]
    assert [event.step for event in events.Scalars("iteration-time")] == [40]


def test_tensorboard_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r'pip install "megalite\[log\]"'):
        TensorBoard(tmp_path)


def test_scalars_have_megatrons_tags() -> None:
    shown = record(times={"optimizer": (0.5, 0.25)}, statistics={"params_norm": 12.5})
    scalars = train_scalars(shown, times=True)
    assert (scalars["optimizer-time"], scalars["params-norm"], scalars["iteration-time"]) == (0.5, 12.5, 1.5)
    assert step_scalars(*steps(8)) == {"lm loss": 1.0, "grad-norm": 0.5, "learning-rate": 0.1, "batch-size": 16}
    assert "optimizer-time" not in train_scalars(shown, times=False)


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    run = SimpleNamespace(
        log=lambda scalars, step: told.append((step, scalars)), finish=lambda: told.append("finished")
    )
    asked: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: asked.update(given) or run))
    sink = WeightsAndBiases(
        project="p", name=None, directory=tmp_path / "w", settings={"a": 1}, times=False, interval=20
    )
    for step in steps(39, 40):
        sink.step(step)
    sink.train(record())
    sink.evaluation(EVALUATION)
    sink.close()
    assert asked == {"project": "p", "name": None, "dir": str(tmp_path / "w"), "config": {"a": 1}}
    assert told == [
        (40, step_scalars(*steps(40))),
        (40, train_scalars(record(), times=False)),
        (40, evaluation_scalars(EVALUATION)),
        "finished",
    ]


def test_weights_and_biases_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="--wandb-project needs Weights & Biases"):
        WeightsAndBiases(project="p", name=None, directory=tmp_path, settings={}, times=False, interval=1)


def test_the_diary_keeps_notes_of_all_launches(tmp_path: Path) -> None:
    for ranks in (1, 2):
        diary = ProgressFile(tmp_path / "new" / "progress.txt", ranks=ranks)
        diary.train(record())
        diary.note("saved\nstopped")
        diary.close()
    lines = (tmp_path / "new" / "progress.txt").read_text().splitlines()
    assert [line[21:] for line in lines] == [
        *("started on 1 rank", "saved", "stopped"),
        *("started on 2 ranks", "saved", "stopped"),
    ]


@pytest.mark.parametrize(("level", "names"), [(0, []), (1, ["outer"]), (2, ["inner", "outer"])])
def test_timers(level: int, names: list[str]) -> None:
    timers = Timers(level, torch.device("cpu"))
    for _ in range(2):
        with timers("outer"):
            for _ in range(3):
                with timers("inner", 2):
                    time.sleep(0.002)
    taken = timers.take(2)
    assert list(taken) == names
    assert all(0.006 <= seconds < 0.1 for seconds in taken.values())
    assert timers.take(2) == {}


def test_what_is_rarer_than_iterations_is_told_each_time() -> None:
    timers = Timers(1, torch.device("cpu"))
    with timers("save-checkpoint"):
        time.sleep(0.005)
    assert timers.take(100)["save-checkpoint"] >= 0.005


def test_a_report_tells_of_its_own_iterations_only() -> None:
    told: list[TrainRecord | str] = []
    sink = Sink()
    sink.train, sink.note = told.append, told.append  # type: ignore[method-assign]
    grid = Grid(sizes={"tp": 1, "dp": 1})
    mesh = build_mesh(grid, rank=0, device=torch.device("cpu"), timeout=timedelta(minutes=1))
    engine: Any = SimpleNamespace(timers=Timers(1, mesh.device), mesh=mesh)
    meter = Meter(engine=engine, logger=sink, interval=2, seq_length=8, flops_per_sample=1, statistics={})
    progress = Progress()
    meter.start(progress, 4)
    result = StepResult(loss=3.0, grad_norm=1.0, learning_rate=0.1)
    for span, stepped in (("evaluate", None), ("evaluate", None), ("optimizer", result), ("forward-backward", None)):
        with engine.timers(span):
            progress.count(4, skipped=stepped is None)
        meter.step(stepped, progress)
    skipped, report = told
    assert skipped == "step 2/4 | skipped 2"
    assert isinstance(report, TrainRecord) and (report.iteration, report.skipped, report.lm_loss) == (4, 3, 3.0)
    assert set(report.times) == {"optimizer", "forward-backward"}


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


def test_a_log_that_cannot_be_written_ends_no_run_and_is_told_once(tmp_path: Path) -> None:
    """A disk that has room for two lines and a half, and later for more."""
    heard: list[str] = []

    class Ear(Sink):
        def note(self, text: str) -> None:
            heard.append(text)

    class Small:
        def __init__(self, log: Jsonl) -> None:
            self.file, self.room = log.file, 0

        def write(self, line: bytes) -> int:
            written = self.file.write(line[: self.room])
            self.room -= written
            if written < len(line):
                raise OSError(errno.ENOSPC, "No space left on device")
            return written

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    log = Jsonl(tmp_path / "log.jsonl")
    log.file = disk = Small(log)  # type: ignore[assignment]
    logger = Logger([log, Ear()])
    for room in (1000, 20, 0, 1000):
        disk.room = room
        logger.evaluation(EVALUATION)
    logger.close()
    said = "--log-jsonl cannot write: [Errno 28] No space left on device. Training goes on; what it missed is lost."
    assert heard == [said]
    assert len(jsonl.read(tmp_path / "log.jsonl")) == 2


def test_memory_grows_with_what_is_held() -> None:
    before = peak_resident_bytes()
    held = bytearray(before + 2**26)
    assert len(held) <= peak_resident_bytes() < 2**40


def test_perplexity_of_a_broken_run_is_infinite() -> None:
    assert EvaluationRecord(iteration=1, split="test", loss=1e6, tokens=1).perplexity == math.inf
