"""How long the parts of a step take: `with timers("optimizer"): ...`, which costs nothing where it is not asked."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from megalite.device import synchronize

_UNTIMED = nullcontext()


class Timers:
    """Adds up the seconds of named spans: of the parts of a step at `level` 1, of their parts, too, at `level` 2."""

    def __init__(self, level: int, device: torch.device) -> None:
        self.level, self.device = level, device
        self._spans: dict[str, list[float]] = {}

    def __call__(self, name: str, level: int = 1) -> AbstractContextManager[None]:
        """The span of a `with`; the work that it queues on the device is waited for, so that its time is honest."""
        return self._span(name) if level <= self.level else _UNTIMED

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        synchronize(self.device)
        started = time.perf_counter()
        yield
        synchronize(self.device)
        self._spans.setdefault(name, []).append(time.perf_counter() - started)

    def take(self, iterations: int) -> dict[str, float]:
        """Seconds of each span per iteration, or per span where there are fewer; the count starts anew."""
        taken = {name: sum(times) / min(len(times), iterations) for name, times in self._spans.items()}
        self._spans.clear()
        return taken
