"""Proofs about a schedule, before anything is sent: nothing is missing, nothing waits for ever, what it costs."""

from collections import Counter
from dataclasses import dataclass

from megalite.schedule.action import Action, Op, Program

COST: dict[Op, float] = {Op.F: 1, Op.B: 2, Op.I: 1, Op.W: 1, Op.GRAD_SYNC: 0}
"""Time of each action; a backward has twice the matrix products of its forward."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """When each action begins and ends, if ranks do nothing but work and wait."""

    begins: dict[Action, float]
    ends: dict[Action, float]
    length: float
    busy: tuple[float, ...]
    """Time that each rank works."""

    @property
    def bubble(self) -> float:
        """The share of all ranks' time that is spent waiting."""
        return 1 - sum(self.busy) / (self.length * len(self.busy))


def check_complete(schedule: list[Program], *, num_stages: int, num_micro_batches: int, training: bool = True) -> None:
    """ValueError unless each micro-batch passes each stage once: forward, and in training backward, whole or split."""
    counts = Counter(action for program in schedule for action in program)
    twice = [str(action) for action, count in counts.items() if count > 1]
    missing = []
    for stage in range(num_stages):
        for microbatch in range(num_micro_batches):
            f, b, i, w = (Action(op=op, stage=stage, microbatch=microbatch) for op in (Op.F, Op.B, Op.I, Op.W))
            missing += [str(f)] if f not in counts else []
            whole, split = b in counts, i in counts and w in counts
            if training and not (whole or split):
                missing.append(str(b))
            twice += [f"{b} beside {i} or {w}"] if whole and (i in counts or w in counts) else []
    strange = [str(a) for a in counts if not (a.stage < num_stages and a.microbatch < num_micro_batches)]
    if twice or missing or strange:
        raise ValueError(f"The schedule does twice: {twice}; leaves out: {missing}; does not know: {strange}.")


def simulate(schedule: list[Program], cost: dict[Op, float] = COST) -> Timeline:
    """Run a schedule on paper. ValueError, with what each rank waits for, where it can never finish."""
    last_stage = max(action.stage for program in schedule for action in program)
    begins: dict[Action, float] = {}
    ends: dict[Action, float] = {}
    free, done = [0.0] * len(schedule), [0] * len(schedule)
    while any(done[rank] < len(program) for rank, program in enumerate(schedule)):
        before = sum(done)
        for rank, program in enumerate(schedule):
            while done[rank] < len(program):
                action = program[done[rank]]
                if _missing(action, ends, last_stage):
                    break
                ready = [ends[need] for options in _needs(action, last_stage) for need in options if need in ends]
                begins[action] = max([free[rank], *ready])
                ends[action] = free[rank] = begins[action] + cost[action.op]
                done[rank] += 1
        if sum(done) == before:
            raise ValueError(f"The schedule is stuck: {_waits(schedule, done, ends, last_stage)}.")
    busy = tuple(sum(cost[action.op] for action in program) for program in schedule)
    return Timeline(begins=begins, ends=ends, length=max(free), busy=busy)


def peak_in_flight(program: Program) -> tuple[int, int]:
    """The most micro-batches that one rank holds between F and B or I, and, apart from those, between I and W."""
    steps = {Op.F: (1, 0), Op.B: (-1, 0), Op.I: (-1, 1), Op.W: (0, -1)}
    held, deferred, peaks = 0, 0, (0, 0)
    for action in program:
        up, later = steps.get(action.op, (0, 0))
        held, deferred = held + up, deferred + later
        peaks = max(peaks[0], held), max(peaks[1], deferred)
    return peaks


def _needs(action: Action, last_stage: int) -> list[tuple[Action, ...]]:
    """What must have ended before an action: of each tuple, one."""

    def at(stage: int, *ops: Op) -> tuple[Action, ...]:
        return tuple(Action(op=op, stage=stage, microbatch=action.microbatch) for op in ops)

    stage = action.stage
    match action.op:
        case Op.F:
            return [at(stage - 1, Op.F)] if stage > 0 else []
        case Op.B | Op.I:
            return [at(stage, Op.F)] + ([at(stage + 1, Op.B, Op.I)] if stage < last_stage else [])
        case Op.W:
            return [at(stage, Op.I)]
        case _:
            return []


def _missing(action: Action, ends: dict[Action, float], last_stage: int) -> list[str]:
    needs = _needs(action, last_stage)
    return [" or ".join(map(str, options)) for options in needs if not any(need in ends for need in options)]


def _waits(schedule: list[Program], done: list[int], ends: dict[Action, float], last_stage: int) -> str:
    return "; ".join(
        f"rank {rank} waits with {program[count]} for {' and '.join(_missing(program[count], ends, last_stage))}"
        for rank, (program, count) in enumerate(zip(schedule, done, strict=True))
        if count < len(program)
    )
