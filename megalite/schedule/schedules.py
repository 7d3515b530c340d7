"""Pipeline schedules as pure functions: the number of ranks and micro-batches to a program for each rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from megalite.config.pipeline import Pipeline
from megalite.schedule.action import Action, Op, Program


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a schedule is made for."""

    num_ranks: int
    num_micro_batches: int
    num_chunks: int
    """Stages on each rank."""
    group_size: int
    """Micro-batches that an interleaved rank passes through one chunk before it turns to the next."""


def weave(forwards: Program, backwards: Program, *, lead: int) -> Program:
    """Warm-up: `lead` forwards. Steady: a forward and a backward in turn. Cool-down: the backwards that are left."""
    lead = min(lead, len(forwards))
    steady = zip(forwards[lead:], backwards, strict=False)
    return forwards[:lead] + [action for pair in steady for action in pair] + backwards[len(forwards) - lead :]


def gpipe(shape: Shape) -> list[Program]:
    """All forwards, then all backwards: every rank holds all micro-batches. Huang et al. 2019, GPipe."""
    return [_woven(shape, rank, lead=shape.num_micro_batches) for rank in range(shape.num_ranks)]


def one_f_one_b(shape: Shape) -> list[Program]:
    """1F1B: each rank is ahead by as many forwards as there are ranks after it, so rank r holds at most
    min(m, p - r) micro-batches. On one rank it is gradient accumulation: F B F B. Narayanan et al. 2019, PipeDream.
    """
    return [_woven(shape, rank, lead=shape.num_ranks - 1 - rank) for rank in range(shape.num_ranks)]


def interleaved(shape: Shape) -> list[Program]:
    """1F1B over several chunks a rank, in groups of micro-batches: the bubble is a v-th. Narayanan et al. 2021.

    Where the last group is smaller, it is as if it were full, and what is too much left out: then no rank waits for
    ever, since none does with full groups of at least p - 1.
    """
    p, m, v, group = shape.num_ranks, shape.num_micro_batches, shape.num_chunks, shape.group_size
    least = max(1, p - 1) if v > 1 else 1
    if group < least:
        raise ValueError(
            f"--microbatch-group-size-per-virtual-pipeline-stage {group} would let {p} ranks wait for each other for "
            f"ever: it must be at least {least}. Try {p}."
        )
    group = min(group, m)
    full = replace(shape, num_micro_batches=-(-m // group) * group, group_size=group)
    ahead = 1 if v == 1 else 2  # to the next chunk at once, before the first backward comes back
    return [_first(m, _woven(full, rank, lead=ahead * (p - 1 - rank) + (v - 1) * group)) for rank in range(p)]


def zb_h1(shape: Shape) -> list[Program]:
    """1F1B with a split backward, and what 1F1B holds on its first rank held on every rank: W fills the waiting times.
    Qi et al. 2024, Zero Bubble Pipeline Parallelism.
    """
    return [split_backward(program, late=range(rank)) for rank, program in enumerate(one_f_one_b(shape))]


def split_backward(program: Program, *, late: range) -> Program:
    """Each B becomes I, followed by the W that waits longest; none follows the backwards numbered in `late`, whose W
    run last.
    """
    split: Program = []
    waiting: Program = []
    backwards = 0
    for action in program:
        if action.op is not Op.B:
            split.append(action)
            continue
        split.append(action._replace(op=Op.I))
        waiting.append(action._replace(op=Op.W))
        if backwards not in late:
            split.append(waiting.pop(0))
        backwards += 1
    return split + waiting


def zb_v(shape: Shape) -> list[Program]:
    """Two chunks a rank, the second of them on the way back, so that the loss is on rank 0, and a split backward: next
    to no bubble in the memory of 1F1B. Qi et al. 2024, Pipeline Parallelism with Controllable Memory.
    """
    return [_zb_v(shape.num_ranks, shape.num_micro_batches, rank) for rank in range(shape.num_ranks)]


def _zb_v(p: int, m: int, rank: int) -> Program:
    """As for endlessly many micro-batches, of which those from m on are left out."""
    down, up = rank, 2 * p - 1 - rank
    many = range(m + 2 * p)
    f = [[Action(Op.F, stage, microbatch) for microbatch in many] for stage in (down, up)]
    b = [[Action(Op.B, stage, microbatch) for microbatch in many] for stage in (down, up)]
    # Forwards go down until the first comes up, then in turn, then up until the first backward goes the same way.
    first, after = 2 * (p - rank) - 1, 2 * p - 1 - rank
    forwards = f[0][:first] + _in_turn(f[1][:rank], f[0][first:after]) + f[1][rank:p] + _in_turn(f[0][after:], f[1][p:])
    backwards = b[1][: p - rank] + _in_turn(b[0], b[1][p - rank :])
    woven = _first(m, weave(forwards, backwards, lead=2 * p - 1))
    return split_backward(woven, late=range(2 * m - p - rank, 2 * m - p + rank))


SCHEDULES: dict[str, Callable[[Shape], list[Program]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-v": zb_v,
}
"""Schedules by the names of --pipeline-schedule."""


def fixed_chunks(name: str) -> int | None:
    """The stages on each rank that a schedule is made for; None where any number will do."""
    return {"interleaved": None, "zb-v": 2}.get(name, 1)


def placement(name: str, num_ranks: int, num_chunks: int) -> tuple[int, ...]:
    """The rank of each stage: round and round, or for `zb-v` to the last rank and back."""
    _check_chunks(name, num_chunks)
    if name == "zb-v":
        return (*range(num_ranks), *reversed(range(num_ranks)))
    return tuple(range(num_ranks)) * num_chunks


def make_schedule(
    name: str, *, num_ranks: int, num_micro_batches: int, num_chunks: int = 1, group_size: int | None = None
) -> list[Program]:
    """The program of each rank. `group_size` (default: `num_ranks`) concerns `interleaved` alone."""
    _check_chunks(name, num_chunks)
    return SCHEDULES[name](
        Shape(
            num_ranks=num_ranks,
            num_micro_batches=num_micro_batches,
            num_chunks=num_chunks,
            group_size=num_ranks if group_size is None else group_size,
        )
    )


def schedule_of(asked: Pipeline, num_micro_batches: int) -> list[Program]:
    """The program of each rank of the pipeline that settings ask for."""
    return make_schedule(
        asked.schedule,
        num_ranks=asked.num_ranks,
        num_micro_batches=num_micro_batches,
        num_chunks=asked.num_chunks,
        group_size=asked.group_size,
    )


def forward_only(placement: Sequence[int], num_micro_batches: int) -> list[Program]:
    """Evaluation, in groups of as many micro-batches as there are ranks: no rank holds more between its stages."""
    num_ranks = max(placement) + 1
    stages = [[stage for stage, holder in enumerate(placement) if holder == rank] for rank in range(num_ranks)]
    return [_in_groups(Op.F, held, num_micro_batches, num_ranks) for held in stages]


def _check_chunks(name: str, num_chunks: int) -> None:
    if name not in SCHEDULES:
        raise ValueError(f"--pipeline-schedule {name} is not known. Try one of {', '.join(SCHEDULES)}.")
    chunks = fixed_chunks(name)
    if num_chunks < 1 or (chunks and num_chunks != chunks):
        raise ValueError(
            f"--pipeline-schedule {name} has {chunks or 'at least 1'} stage{'s' * (chunks == 2)} on each rank, "
            f"not {num_chunks}. Try {chunks or 2}."
        )


def _woven(shape: Shape, rank: int, *, lead: int) -> Program:
    stages = range(rank, shape.num_ranks * shape.num_chunks, shape.num_ranks)
    forwards = _in_groups(Op.F, stages, shape.num_micro_batches, shape.group_size)
    backwards = _in_groups(Op.B, stages[::-1], shape.num_micro_batches, shape.group_size)
    return weave(forwards, backwards, lead=lead)


def _first(count: int, program: Program) -> Program:
    """What the first `count` micro-batches are in a program for more of them: if that one ends, so does this."""
    return [action for action in program if action.microbatch < count]


def _in_groups(op: Op, stages: Sequence[int], num_micro_batches: int, group_size: int) -> Program:
    """Groups of micro-batches, each through all stages."""
    return [
        Action(op, stage, microbatch)
        for first in range(0, num_micro_batches, group_size)
        for stage in stages
        for microbatch in range(first, min(first + group_size, num_micro_batches))
    ]


def _in_turn(ones: Program, others: Program) -> Program:
    """One of these and one of those; as many of each as the shorter has."""
    return [action for pair in zip(ones, others, strict=False) for action in pair]
