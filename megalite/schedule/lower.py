"""From a schedule to what ranks execute."""

from megalite.schedule.action import Action, Op, Program
from megalite.schedule.check import check_complete, check_pairs, ranks_of_stages, simulate


def lower(
    schedule: list[Program], *, num_micro_batches: int, training: bool = True, sync_each: bool = False
) -> list[Program]:
    """Each rank's program with its messages, and a GRAD_SYNC after the last backward of each of its stages, or, where
    `sync_each`, after every whole backward.

    A message enters both programs at the moment when the simulation has what it brings. So RECV stands before what
    the receiver does meanwhile, and any two ranks see their messages in one order. Receiving just before use would
    let ranks wait for each other where both first send.

    Schedule and programs are proven: ValueError where anything is left out, or could never finish.
    """
    place = ranks_of_stages(schedule)
    num_stages = max(place) + 1
    check_complete(schedule, num_stages=num_stages, num_micro_batches=num_micro_batches, training=training)
    ends = simulate(schedule).ends
    last = {a.stage: a for program in schedule for a in program if a.op is not Op.F}
    programs: list[Program] = [[] for _ in schedule]
    for action in sorted(ends, key=ends.__getitem__):
        op, stage, microbatch = action
        programs[place[stage]].append(action)
        if op is not Op.W:
            send, receive, other = (
                (Op.SEND_F, Op.RECV_F, stage + 1) if op is Op.F else (Op.SEND_B, Op.RECV_B, stage - 1)
            )
            if place.get(other, place[stage]) != place[stage]:
                programs[place[stage]].append(Action(send, stage, microbatch))
                programs[place[other]].append(Action(receive, other, microbatch))
        if last.get(stage) == action or (sync_each and op is Op.B):
            programs[place[stage]].append(Action(Op.GRAD_SYNC, stage))
    check_pairs(programs)
    return programs
