"""Pipeline schedules as pure functions: the number of ranks and micro-batches to a program for each rank."""

from megalite.schedule.action import Action, Op, Program


def weave(forwards: Program, backwards: Program, *, lead: int) -> Program:
    """Warm-up: `lead` forwards. Steady: a forward and a backward in turn. Cool-down: the backwards that are left."""
    steady = zip(forwards[lead:], backwards, strict=False)
    return forwards[:lead] + [action for pair in steady for action in pair] + backwards[len(forwards) - lead :]


def one_f_one_b(num_ranks: int, num_micro_batches: int) -> list[Program]:
    """1F1B: each rank is ahead by as many forwards as there are ranks after it, so rank r holds at most
    min(m, p - r) micro-batches. On one rank it is gradient accumulation: F B F B. Narayanan et al. 2019, PipeDream.
    """
    return [_woven(rank, num_micro_batches, lead=num_ranks - 1 - rank) for rank in range(num_ranks)]


def gpipe(num_ranks: int, num_micro_batches: int) -> list[Program]:
    """All forwards, then all backwards: every rank holds all micro-batches. Huang et al. 2019, GPipe."""
    return [_woven(rank, num_micro_batches, lead=num_micro_batches) for rank in range(num_ranks)]


def forward_only(num_ranks: int, num_micro_batches: int) -> list[Program]:
    """Evaluation."""
    return [_all(Op.F, rank, num_micro_batches) for rank in range(num_ranks)]


def _woven(stage: int, num_micro_batches: int, *, lead: int) -> Program:
    forwards, backwards = (_all(op, stage, num_micro_batches) for op in (Op.F, Op.B))
    return weave(forwards, backwards, lead=min(lead, num_micro_batches))


def _all(op: Op, stage: int, num_micro_batches: int) -> Program:
    return [Action(op=op, stage=stage, microbatch=microbatch) for microbatch in range(num_micro_batches)]
