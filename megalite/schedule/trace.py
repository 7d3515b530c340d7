"""What a run recorded of its pipeline: the file of --pipeline-trace, in Chrome's trace-event format."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from megalite.schedule.action import COMPUTE, Action, Op, Program
from megalite.schedule.check import Timeline, simulate
from megalite.schedule.schedules import make_schedule, placement


@dataclass(frozen=True, kw_only=True)
class Event:
    """One action of one rank in one step; times in microseconds, on a clock that all ranks share."""

    action: Action
    rank: int
    """The pipeline rank."""
    step: int
    begin: float
    duration: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The schedule of a run, and when its actions really began and ended."""

    schedule: str
    num_ranks: int
    num_micro_batches: int
    """Of the run's last step; where the batch grows, each step has its own."""
    num_chunks: int
    group_size: int
    events: tuple[Event, ...]

    @property
    def steps(self) -> list[int]:
        """The steps that were recorded, in order."""
        return sorted({event.step for event in self.events})

    @property
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage."""
        return placement(self.schedule, self.num_ranks, self.num_chunks)

    def timeline(self, step: int) -> Timeline:
        """A step as it was, in milliseconds from its first action. A sum over replicas is no work: it is waiting."""
        events = self._of_step(step)
        start = min(event.begin for event in events)
        busy = [0.0] * self.num_ranks
        for event in events:
            busy[event.rank] += event.duration / 1000 if event.action.op in COMPUTE else 0
        begins = {event.action: (event.begin - start) / 1000 for event in events}
        ends = {event.action: (event.begin + event.duration - start) / 1000 for event in events}
        length = max(end for action, end in ends.items() if action.op in COMPUTE)
        return Timeline(begins=begins, ends=ends, length=length, busy=tuple(busy))

    def predicted(self, step: int) -> Timeline:
        """A step as the schedule has it, in milliseconds, where each op of a stage takes the mean of what it took."""
        times: dict[tuple[Op, int], list[float]] = defaultdict(list)
        for event in self._of_step(step):
            times[event.action.op, event.action.stage].append(event.duration / 1000)
        means = {key: mean(found) for key, found in times.items()}
        return simulate(self._schedule(step), lambda action: means[action.op, action.stage])

    def replayed(self, step: int) -> Timeline:
        """A step as the schedule has it, in milliseconds, where each action takes what it took.

        What the step was longer than this, its messages took, and whoever ran the program.
        """
        times = {event.action: event.duration / 1000 for event in self._of_step(step)}
        return simulate(self._schedule(step), lambda action: times[action])

    def _schedule(self, step: int) -> list[Program]:
        """The schedule of a step. ValueError where an action of it was not recorded."""
        recorded = {event.action for event in self._of_step(step)}
        schedule = make_schedule(
            self.schedule,
            num_ranks=self.num_ranks,
            num_micro_batches=1 + max(action.microbatch for action in recorded),
            num_chunks=self.num_chunks,
            group_size=self.group_size,
        )
        absent = {f"{op.value}{stage}" for program in schedule for op, stage, _ in set(program) - recorded}
        if absent:
            raise ValueError(f"The trace of step {step} is not whole: no {' '.join(sorted(absent))}. Try another step.")
        return schedule

    def _of_step(self, step: int) -> list[Event]:
        found = [event for event in self.events if event.step == step]
        if not found:
            raise ValueError(f"The trace has no step {step}. Try {self.steps[-1] if self.steps else 'a longer run'}.")
        return found

    def to_json(self) -> str:
        """The text of the file; Chrome and Perfetto open it too."""
        events = [
            {
                "name": str(event.action),
                "ph": "X",
                "ts": event.begin,
                "dur": event.duration,
                "pid": 0,
                "tid": event.rank,
                "args": {
                    "op": event.action.op.value,
                    "stage": event.action.stage,
                    "microbatch": event.action.microbatch,
                    "step": event.step,
                },
            }
            for event in self.events
        ]
        names = ("schedule", "num_ranks", "num_micro_batches", "num_chunks", "group_size")
        return json.dumps({"traceEvents": events, "megalite": {name: getattr(self, name) for name in names}})


def read_trace(path: Path) -> Trace:
    """The trace in a file. ValueError where it is none of ours."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        events = tuple(_event(event) for event in content["traceEvents"])
        return Trace(**content["megalite"], events=events)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a trace that --pipeline-trace wrote: {error!r}") from error


def _event(event: dict[str, Any]) -> Event:
    told = event["args"]
    return Event(
        action=Action(Op(told["op"]), told["stage"], told["microbatch"]),
        rank=event["tid"],
        step=told["step"],
        begin=event["ts"],
        duration=event["dur"],
    )
