"""What asks a run to stop before its end: the clock, or a signal. All ranks agree on it before any of them acts."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from megalite.comm.collectives import all_reduce
from megalite.mesh import ParallelMesh


class Stop:
    """Asked after each iteration, and between the batches of an evaluation.

    A signal is noted and nothing else, so that it harms neither the iteration nor the save during which it comes.
    """

    def __init__(self, *, minutes: float | None, started: float) -> None:
        self.minutes, self.started = minutes, started
        self.listens = False
        self.signalled = ""
        """The name of the signal that has come."""

    @contextmanager
    def listening(self, name: str) -> Iterator[None]:
        """Note the signal of this name while the context lasts, instead of ending the process."""

        def note(number: int, frame: Any) -> None:
            self.signalled = name

        before = signal.signal(signal.Signals[name], note)
        self.listens = True
        try:
            yield
        finally:
            signal.signal(signal.Signals[name], before)
            self.listens = False

    def asked(self, mesh: ParallelMesh) -> str:
        """Why to stop now; empty: go on. Every rank must ask, and gets the same answer."""
        if self.minutes is None and not self.listens:
            return ""
        late = self.minutes is not None and time.monotonic() - self.started >= 60 * self.minutes
        facts = torch.tensor([late, bool(self.signalled)], dtype=torch.int32, device=mesh.device)
        late, signalled = all_reduce(facts, mesh.world, "max").tolist()
        if signalled:
            return "--exit-signal-handler: a rank was asked to stop by a signal"
        return f"--exit-duration-in-mins {self.minutes:g}: the time is over" if late else ""
