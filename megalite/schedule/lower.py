"""From a schedule to what ranks execute."""

from megalite.schedule.action import Action, Op, Program
from megalite.schedule.check import check_complete, simulate


def lower(schedule: list[Program], *, num_micro_batches: int, training: bool = True) -> list[Program]:
    """Each rank's program with a GRAD_SYNC after the last backward of each of its stages.

    The schedule is proven first: ValueError where it leaves anything out, or could never finish.
    """
    num_stages = 1 + max(action.stage for program in schedule for action in program)
    check_complete(schedule, num_stages=num_stages, num_micro_batches=num_micro_batches, training=training)
    simulate(schedule)
    return [_with_grad_sync(program) for program in schedule]


def _with_grad_sync(program: Program) -> Program:
    last = {action.stage: action for action in program if action.op in (Op.B, Op.W)}
    lowered = []
    for action in program:
        lowered.append(action)
        if last.get(action.stage) is action:
            lowered.append(Action(op=Op.GRAD_SYNC, stage=action.stage))
    return lowered
