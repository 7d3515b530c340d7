"""The loop: step, log, evaluate, save, until the run is complete or told to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from megalite.config.derive import Derived
from megalite.config.schema import Config
from megalite.data.batch import Dataset, MicroBatch, micro_batches
from megalite.data.splits import Datasets
from megalite.device import peak_memory, synchronize
from megalite.observe.memory import peak_resident_bytes
from megalite.observe.record import EvaluationRecord, Sink, TrainRecord
from megalite.train.build import Engine
from megalite.train.resume import Progress
from megalite.train.step import StepResult, evaluate, train_step


@dataclass(frozen=True, kw_only=True)
class Session:
    """Everything that one run of the program works with."""

    config: Config
    derived: Derived
    engine: Engine
    datasets: Datasets
    logger: Sink
    save: Callable[[Progress], Path]
    flops_per_sample: int


def train(session: Session, progress: Progress) -> None:
    """Train from `progress` to the end of the run, or to --exit-interval; then evaluate and save."""
    settings, batch_size = session.config, session.derived.global_batch_size
    remaining = (session.derived.train_samples - progress.consumed_samples) // batch_size
    if remaining <= 0:
        session.logger.note(f"The run is complete after iteration {progress.iteration}: nothing is left to train.")
    last, meter = progress.iteration + max(remaining, 0), Meter(session)
    while progress.iteration < last:
        batch = _micro_batches(session, session.datasets.train, progress.consumed_samples)
        consumed = progress.consumed_samples
        result = train_step(session.engine, batch, step=progress.iteration + 1, consumed_samples=consumed)
        progress.iteration += 1
        progress.consumed_samples += batch_size
        meter.step(result, progress, last)
        exiting = _falls_on(settings.train.exit_interval, progress)
        ending = progress.iteration == last
        if not ending and _falls_on(settings.train.eval_interval, progress):
            meter.pause(lambda: _evaluate(session, progress, "validation"))
        if settings.checkpoint.save and (ending or exiting or _falls_on(settings.checkpoint.save_interval, progress)):
            meter.pause(lambda: _save(session, progress))
        if exiting and not ending:
            session.logger.note(f"--exit-interval {settings.train.exit_interval}: stopped.")
            return
    _evaluate(session, progress, "validation")
    _evaluate(session, progress, "test")


class Meter:
    """Reports every --log-interval iterations; a pause for something else is not counted as training time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._restart()

    def step(self, result: StepResult, progress: Progress, last: int) -> None:
        """Take note of one iteration, and report if it is its turn."""
        self.losses.append(result.loss)
        if _falls_on(self.session.config.log.log_interval, progress) or progress.iteration == last:
            self.session.logger.train(self._record(result, progress, last))
            self._restart()

    def pause(self, other: Callable[[], None]) -> None:
        """Do something else while the clock stands."""
        started = time.perf_counter()
        other()
        self.started += time.perf_counter() - started

    def _restart(self) -> None:
        self.losses: list[float] = []
        self.started = time.perf_counter()

    def _record(self, result: StepResult, progress: Progress, last: int) -> TrainRecord:
        session, device = self.session, self.session.engine.mesh.device
        synchronize(device)
        seconds = (time.perf_counter() - self.started) / len(self.losses)
        samples = session.derived.global_batch_size
        return TrainRecord(
            iteration=progress.iteration,
            train_iters=last,
            consumed_samples=progress.consumed_samples,
            lm_loss=sum(self.losses) / len(self.losses),
            grad_norm=result.grad_norm,
            learning_rate=result.learning_rate,
            tokens_per_second=samples * session.config.model.seq_length / seconds,
            iteration_time=seconds,
            tflops_per_rank=samples * session.flops_per_sample / seconds / session.engine.mesh.world.size / 1e12,
            memory_bytes=peak_memory(device) or peak_resident_bytes(),
            skipped=0,
        )


def _falls_on(interval: int | None, progress: Progress) -> bool:
    return interval is not None and progress.iteration % interval == 0


def _micro_batches(session: Session, dataset: Dataset | None, first: int) -> list[MicroBatch]:
    """This rank's part of the global batch that starts at sample `first`."""
    assert dataset is not None
    dp = session.engine.mesh.dp
    return micro_batches(
        dataset,
        first,
        micro_batch_size=session.config.train.micro_batch_size,
        num_micro_batches=session.derived.num_micro_batches,
        dp_rank=dp.rank,
        dp_size=dp.size,
        device=session.engine.mesh.device,
        ends=session.datasets.ends,
    )


def _evaluate(session: Session, progress: Progress, split: str) -> None:
    """Report the loss of --eval-iters global batches: the same ones each time, so that two reports can be compared."""
    for name, dataset in session.datasets.held_out(split).items():
        loss, tokens = 0.0, 0
        for number in range(session.config.train.eval_iters):
            batch = _micro_batches(session, dataset, number * session.derived.global_batch_size)
            batch_loss, batch_tokens = evaluate(session.engine, batch)
            loss, tokens = loss + batch_loss, tokens + batch_tokens
        session.logger.evaluation(
            EvaluationRecord(iteration=progress.iteration, split=name, loss=loss / max(tokens, 1), tokens=tokens)
        )


def _save(session: Session, progress: Progress) -> None:
    started = time.perf_counter()
    directory = session.save(progress)
    session.logger.note(f"saved {directory} in {time.perf_counter() - started:.1f} s")
