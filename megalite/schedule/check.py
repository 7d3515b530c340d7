"""Proofs about a schedule, before anything is sent: nothing is missing, nothing waits for ever, what it costs."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from megalite.schedule.action import COMPUTE, Action, Op, Program

Key = tuple[Op, int, int]
"""An action as a plain tuple, which equals it and is made faster."""

Cost = Mapping[Op, float] | Callable[[Action], float]
COST: dict[Op, float] = {Op.F: 1, Op.B: 2, Op.I: 1, Op.W: 1}
"""Time of each action; a backward has twice the matrix products of its forward. Communication costs nothing."""

PEER = {Op.SEND_F: (Op.RECV_F, 1), Op.RECV_F: (Op.SEND_F, -1), Op.SEND_B: (Op.RECV_B, -1), Op.RECV_B: (Op.SEND_B, 1)}
"""The other end of a message: what is done there, and how many stages further."""


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


def ranks_of_stages(schedule: list[Program]) -> dict[int, int]:
    """Which rank holds each stage."""
    return {action.stage: rank for rank, program in enumerate(schedule) for action in program}


def check_complete(schedule: list[Program], *, num_stages: int, num_micro_batches: int, training: bool = True) -> None:
    """ValueError unless each micro-batch passes each stage once: forward, and in training backward, whole or split."""
    place = ranks_of_stages(schedule)
    counts = Counter(action for program in schedule for action in program)
    twice = [str(action) for action, count in counts.items() if count > 1]
    strange = [str(a) for a in counts if not (a.stage < num_stages and a.microbatch < num_micro_batches)]
    strange += [f"{a} on rank {r}" for r, program in enumerate(schedule) for a in program if place[a.stage] != r]
    missing = []
    known: set[Key] = {*counts}
    for stage in range(num_stages):
        for microbatch in range(num_micro_batches):
            f, b, i, w = ((op, stage, microbatch) in known for op in COMPUTE)
            missing += [] if f else [f"F{stage}.{microbatch}"]
            missing += [] if not training or b or (i and w) else [f"B{stage}.{microbatch}"]
            twice += [f"B{stage}.{microbatch} beside I or W"] if b and (i or w) else []
    if twice or missing or strange:
        raise ValueError(
            f"The schedule does twice: {_few(twice)}; leaves out: {_few(missing)}; does not know: {_few(strange)}."
        )
    inputs, weights = (_turns(schedule, op) for op in (Op.I, Op.W))
    if disordered := [stage for stage in inputs if inputs[stage] != weights[stage]]:
        raise ValueError(f"Weight gradients of stages {disordered} come in another order than their input gradients.")


def _turns(schedule: list[Program], op: Op) -> dict[int, list[int]]:
    """The micro-batches of each stage in the order in which it executes an op."""
    turns = defaultdict(list)
    for action in (action for program in schedule for action in program if action.op is op):
        turns[action.stage].append(action.microbatch)
    return turns


def check_pairs(programs: list[Program]) -> None:
    """ValueError unless lowered programs surely finish.

    Any two ranks see their messages in one order, and no rank waits for ever even if each SEND waits until its RECV is
    reached. A RECV waits for nothing where it stands: what it brings is waited for where it is used.
    """
    place = ranks_of_stages(programs)
    seen: dict[tuple[int, int], list[Action]] = defaultdict(list)
    for rank, program in enumerate(programs):
        for action in program:
            if action.op in PEER:
                _, stage, _ = _peer(action)
                other = place.get(stage, rank)
                if other == rank:
                    raise ValueError(f"Rank {rank} has {action}, but no other rank holds stage {stage}.")
                seen[rank, other].append(action)
    for (rank, other), messages in seen.items():
        theirs = [Action(*_peer(action)) for action in seen.get((other, rank), [])]
        for number, (mine, other_end) in enumerate(zip_longest(messages, theirs, fillvalue="none")):
            if mine != other_end:
                raise ValueError(
                    f"Ranks {rank} and {other} do not see their messages in one order: number {number} is {mine} "
                    f"on rank {rank}, but the other end of {other_end} on rank {other}."
                )
    _run(programs, COST, _Rules.of(programs, lowered=True, rendezvous=True))


def simulate(schedule: list[Program], cost: Cost = COST) -> Timeline:
    """Run a schedule, or lowered programs, on paper: each action begins when its rank is free and what it needs is
    there. `cost` is the time of an action, by its op or by the action; communication takes none.

    ValueError, with what each rank waits for, where it can never finish.
    """
    lowered = any(action.op in PEER for program in schedule for action in program)
    return _run(schedule, cost, _Rules.of(schedule, lowered=lowered))


def peak_in_flight(program: Program) -> tuple[int, int]:
    """The most micro-batches that one rank holds between F and B or I, and, apart from those, between I and W; one
    that is in two chunks of the rank counts twice.
    """
    return _peak(program, {Op.F: 1, Op.B: -1, Op.I: -1}), _peak(program, {Op.I: 1, Op.W: -1})


def peak_kept(program: Program) -> int:
    """The most micro-batches of which one rank keeps anything: from F to B or W."""
    return _peak(program, {Op.F: 1, Op.B: -1, Op.W: -1})


def _peak(program: Program, steps: Mapping[Op, int]) -> int:
    held = peak = 0
    for action in program:
        held += steps.get(action.op, 0)
        peak = max(peak, held)
    return peak


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """What must have ended before an action may begin."""

    known: frozenset[Key]
    place: dict[int, int]
    lowered: bool
    """What another rank makes arrives by a message."""
    rendezvous: bool
    """A SEND waits until its RECV is reached."""

    @classmethod
    def of(cls, schedule: list[Program], *, lowered: bool, rendezvous: bool = False) -> "_Rules":
        known = frozenset(action for program in schedule for action in program)
        return cls(known=known, place=ranks_of_stages(schedule), lowered=lowered, rendezvous=rendezvous)

    def needs(self, action: Action) -> tuple[Key, ...]:
        op, stage, microbatch = action
        match op:
            case Op.F:
                return self._arrival((Op.F, stage - 1, microbatch), Op.RECV_F, stage) if stage else ()
            case Op.B | Op.I:
                here = (Op.F, stage, microbatch)
                if stage == len(self.place) - 1:
                    return (here,)
                return (here, *self._arrival(self._backward(stage + 1, microbatch), Op.RECV_B, stage))
            case Op.W:
                return ((Op.I, stage, microbatch),)
            case Op.SEND_F | Op.SEND_B:
                made = (Op.F, stage, microbatch) if op is Op.SEND_F else self._backward(stage, microbatch)
                return (made, _peer(action)) if self.rendezvous else (made,)
            case _:
                return ()

    def _arrival(self, made: Key, receive: Op, stage: int) -> tuple[Key, ...]:
        if not self.lowered or self.place.get(made[1]) == self.place[stage]:
            return (made,)
        received = (receive, stage, made[2])
        return received, _peer(received)

    def _backward(self, stage: int, microbatch: int) -> Key:
        split = (Op.I, stage, microbatch)
        return split if split in self.known else (Op.B, stage, microbatch)


def _run(schedule: list[Program], cost: Cost, rules: _Rules) -> Timeline:
    takes = cost if callable(cost) else lambda action: cost[action.op]
    begins: dict[Action, float] = {}
    ends: dict[Key, float] = {}
    free, busy, done = [0.0] * len(schedule), [0.0] * len(schedule), [0] * len(schedule)
    waiting: dict[Key, list[int]] = defaultdict(list)
    awake = deque(range(len(schedule)))
    while awake:
        rank = awake.popleft()
        program = schedule[rank]
        while done[rank] < len(program):
            action = program[done[rank]]
            begin, absent = free[rank], None
            for need in rules.needs(action):
                end = ends.get(need)
                if end is None:
                    absent = need
                    break
                begin = max(begin, end)
            if absent:
                waiting[absent].append(rank)
                break
            time = takes(action) if action.op in COMPUTE else 0
            begins[action] = begin
            ends[action] = free[rank] = begin + time
            busy[rank] += time
            done[rank] += 1
            if action in waiting:
                awake.extend(waiting.pop(action))
    if waiting:
        waits = sorted((rank, Action(*need)) for need, ranks in waiting.items() for rank in ranks)
        told = [f"rank {rank} waits with {schedule[rank][done[rank]]} for {need}" for rank, need in waits]
        raise ValueError(f"The schedule is stuck: {'; '.join(told)}.")
    return Timeline(begins=begins, ends={a: ends[a] for a in begins}, length=max(free), busy=tuple(busy))


def _peer(action: Key) -> Key:
    """The other end of a message."""
    op, stage, microbatch = action
    other, step = PEER[op]
    return other, stage + step, microbatch


def _few(things: list[str]) -> list[str]:
    return things[:8] + ["..."] * (len(things) > 8)
