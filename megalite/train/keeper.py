"""When the run's saves are begun and done, what is told of them, and what a failure means."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from megalite.checkpoint.save import Saved, SaveFailed
from megalite.comm.collectives import PeerLost
from megalite.observe.record import Sink
from megalite.train.resume import Progress

Write = Callable[[Progress], "Future[Saved]"]
"""Saves the run as it is now. The outcome is there at once or later, and is the same on all ranks."""


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A save that is on its way."""

    outcome: "Future[Saved]"
    is_beside: bool
    """Whether it is done beside training."""
    waited: float
    """Seconds for which the training stood still."""
    is_last: bool


class Keeper:
    """The saves of a run, one at a time. One that fails is told, and training goes on; only the last must succeed.

    Left as a context it first waits for the save that is on its way, unless another rank is lost.
    """

    def __init__(self, write: Write, logger: Sink) -> None:
        self._write, self._logger = write, logger
        self._begun: _Begun | None = None

    def save(self, progress: Progress, *, is_last: bool) -> None:
        """Begin to save, once the save before is done. After the last one none is to come that could replace it."""
        started = time.perf_counter()
        self.wait()
        outcome = self._write(progress)
        waited = time.perf_counter() - started
        self._begun = _Begun(outcome=outcome, is_beside=not outcome.done(), waited=waited, is_last=is_last)
        self.tell()

    def tell(self) -> None:
        """Report the save if it is done. That the last one failed is for `wait`: the run is evaluated all the same."""
        begun = self._begun
        if begun is not None and begun.outcome.done() and not (begun.is_last and begun.outcome.exception()):
            self.wait()

    def wait(self) -> None:
        """Wait for the save that is on its way, if any, and report it. Raises SaveFailed on all ranks for the last."""
        if self._begun is None:
            return
        begun, self._begun = self._begun, None
        try:
            saved = begun.outcome.result()
        except SaveFailed as error:
            if begun.is_last:
                raise
            self._logger.note(f"{error} Training goes on.")
            return
        beside = f", of which training waited {begun.waited:.1f} s" if begun.is_beside else ""
        removed = f"; removed {', '.join(saved.removed)}" if saved.removed else ""
        problem = f"; {saved.problem}" if saved.problem else ""
        self._logger.note(f"saved {saved.directory} in {saved.seconds:.1f} s{beside}{removed}{problem}")

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, PeerLost):
            # What ends the run is told by who catches it, which a save that fails, too, must not hide.
            with suppress(ConnectionError):
                try:
                    self.wait()
                except SaveFailed as failed:
                    if error is None:
                        raise
                    self._logger.note(str(failed))
