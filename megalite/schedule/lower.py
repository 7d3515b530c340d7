"""From a schedule to what ranks execute."""

from megalite.schedule.action import Action, Op, Program
from megalite.schedule.check import simulate


def lower(schedule: list[Program]) -> list[Program]:
    """Each rank's program with a GRAD_SYNC after the last backward of each of its stages.

    The schedule is run on paper first: ValueError where it could never finish.
    """
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
