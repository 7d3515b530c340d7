"""What is done after an iteration besides training."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megalite.config.schema import Train
from megalite.train.build import Engine
from megalite.train.replicas import check_replicas
from megalite.train.resume import Progress

Chore = Callable[[Progress], object]


def falls_on(interval: int | None, progress: Progress) -> bool:
    """Whether it is the turn of what is done every so many iterations; None: never."""
    return interval is not None and progress.iteration % interval == 0


def every(interval: int, do: Chore) -> Chore:
    """The chore, when it is its turn."""
    return lambda progress: falls_on(interval, progress) and do(progress)


def chores(settings: Train, engine: Engine) -> Iterator[Chore]:
    """What the settings ask for."""
    if interval := settings.check_weight_hash_across_dp_replicas_interval:
        yield every(interval, lambda progress: check_replicas(engine, f"iteration {progress.iteration}"))
    if settings.manual_gc and settings.manual_gc_interval:
        yield every(settings.manual_gc_interval, lambda progress: gc.collect())
    if settings.manual_gc and settings.eval_interval:
        yield every(settings.eval_interval, lambda progress: gc.collect())


@contextmanager
def manual_gc() -> Iterator[None]:
    """Leave garbage to the chores while the context lasts, so that no rank keeps the others waiting for its own."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
