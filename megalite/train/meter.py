"""What is told of the training: means over the iterations between two reports."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from megalite.comm.collectives import all_gather_object
from megalite.device import peak_memory, synchronize
from megalite.observe.memory import peak_resident_bytes
from megalite.observe.record import Sink, StepRecord, TrainRecord
from megalite.train.build import Engine
from megalite.train.chores import falls_on
from megalite.train.resume import Progress
from megalite.train.step import StepResult


@dataclass(kw_only=True)
class Meter:
    """Reports every `interval` iterations; a pause for something else is not counted as training time."""

    engine: Engine
    logger: Sink
    interval: int
    seq_length: int
    flops_per_sample: int
    statistics: Mapping[str, Callable[[Engine], float]]
    """More numbers to report, by name. All ranks work them out together."""
    last: int = 0
    """The iteration at which the run is complete."""
    losses: list[float] = field(default_factory=list)
    result: StepResult | None = None
    iterations: int = 0
    samples: int = 0
    """Since the last report: iterations, and samples that updates were made with."""
    consumed: int = 0
    started: float = 0.0

    def start(self, progress: Progress, last: int) -> None:
        """Begin to measure a course from here to iteration `last`."""
        self.last, self.consumed, self.started = last, progress.consumed_samples, time.perf_counter()

    def step(self, result: StepResult | None, progress: Progress) -> None:
        """Take note of one iteration, None where its data were passed over, and report if it is its turn."""
        size = progress.consumed_samples - self.consumed
        self.consumed += size
        self.iterations += 1
        if result is not None and not result.skipped:
            self.result = result
            self.losses.append(result.loss)
            self.samples += size
            self.logger.step(
                StepRecord(
                    iteration=progress.iteration,
                    global_batch_size=size,
                    lm_loss=result.loss,
                    grad_norm=result.grad_norm,
                    learning_rate=result.learning_rate,
                )
            )
        if falls_on(self.interval, progress) or progress.iteration == self.last:
            self._report(progress, size)
            self.losses, self.iterations, self.samples = [], 0, 0
            self.started = time.perf_counter()

    def pause(self, other: Callable[[], None]) -> None:
        """Do something else while the clock stands."""
        started = time.perf_counter()
        other()
        self.started += time.perf_counter() - started

    def _report(self, progress: Progress, size: int) -> None:
        engine, result = self.engine, self.result
        times = engine.timers.take(self.iterations)
        statistics = {name: number(engine) for name, number in self.statistics.items()}
        if result is None or not self.losses:
            told = [f"{name.replace('_', ' ')} {value:.6g}" for name, value in statistics.items()]
            course = [f"step {progress.iteration}/{self.last}", *told, f"skipped {progress.skipped}"]
            self.logger.note(" | ".join(course))
            return
        synchronize(engine.mesh.device)
        seconds = time.perf_counter() - self.started
        ranks = all_gather_object(times, engine.mesh.world) if engine.timers.level else []
        record = TrainRecord(
            iteration=progress.iteration,
            train_iters=self.last,
            consumed_samples=progress.consumed_samples,
            global_batch_size=size,
            lm_loss=sum(self.losses) / len(self.losses),
            grad_norm=result.grad_norm,
            learning_rate=result.learning_rate,
            tokens_per_second=self.samples * self.seq_length / seconds,
            iteration_time=seconds / self.iterations,
            tflops_per_rank=self.samples * self.flops_per_sample / seconds / engine.mesh.world.size / 1e12,
            memory_bytes=peak_memory(engine.mesh.device) or peak_resident_bytes(),
            skipped=progress.skipped,
            statistics=statistics,
            times={name: tuple(rank.get(name, 0.0) for rank in ranks) for rank in ranks for name in rank},
        )
        self.logger.train(record)
