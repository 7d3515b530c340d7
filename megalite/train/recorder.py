"""The timeline of a pipeline, as it really was: --pipeline-trace."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megalite.checkpoint.disk import replace_file
from megalite.comm.collectives import all_gather_object
from megalite.config.pipeline import Pipeline
from megalite.device import synchronize
from megalite.mesh import ParallelMesh
from megalite.schedule.action import Action
from megalite.schedule.trace import Event, Trace
from megalite.train.resume import Progress


class Recorder:
    """Notes when each action of this rank begins and ends, in the last `steps` steps before it is asked to write.

    The pipeline of the first replica goes into the file: ranks beside it do the same at the same time.
    """

    def __init__(self, path: Path, *, steps: int, asked: Pipeline, mesh: ParallelMesh, first_step: int) -> None:
        self.path, self.asked, self.mesh = path, asked, mesh
        self._step = first_step
        self._events: deque[list[Event]] = deque([[]], maxlen=steps + 1)
        # Clocks of different machines do not agree: all count from the moment at which they met.
        all_gather_object(None, mesh.world)
        self._origin = time.perf_counter()

    def next_step(self, progress: Progress) -> None:
        """What comes now belongs to the iteration after `progress`."""
        self._step = progress.iteration + 1
        self._events.append([])

    @contextmanager
    def watch(self, action: Action) -> Iterator[None]:
        """Note one action; what it queues on the device is waited for."""
        synchronize(self.mesh.device)
        begin = time.perf_counter()
        yield
        synchronize(self.mesh.device)
        duration = time.perf_counter() - begin
        self._events[-1].append(
            Event(
                action=action,
                rank=self.mesh.pp.rank,
                step=self._step,
                begin=(begin - self._origin) * 1e6,
                duration=duration * 1e6,
            )
        )

    def write(self) -> str:
        """Gather the steps of all ranks in the file; a line about it. Every rank must call it."""
        steps = [event for events in self._events for event in events]
        ranks = all_gather_object(steps, self.mesh.pp)
        if not steps:
            return f"--pipeline-trace {self.path} is not written: no step was trained."
        if self.mesh.rank != 0:
            return ""
        trace = Trace(
            schedule=self.asked.schedule,
            num_ranks=self.asked.num_ranks,
            num_micro_batches=1 + max(event.action.microbatch for event in steps if event.step == steps[-1].step),
            num_chunks=self.asked.num_chunks,
            group_size=self.asked.group_size,
            events=tuple(event for events in ranks for event in events),
        )
        replace_file(self.path, trace.to_json().encode())
        return f"wrote the timeline of steps {trace.steps[0]} to {trace.steps[-1]} to {self.path}"
