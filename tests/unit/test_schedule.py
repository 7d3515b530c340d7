"""Schedules as data: complete, never stuck, as costly as the formulas say, in the memory that they promise."""

import re
from collections import Counter

import pytest

from megalite.schedule.action import COMPUTE, Action, Op, text
from megalite.schedule.check import (
    ranks_of_stages,
    simulate,
)
from megalite.schedule.lower import lower
from megalite.schedule.schedules import SCHEDULES, fixed_chunks, make_schedule, placement, weave

RANKS = range(1, 9)
COUNTS = range(1, 33)


def at(word: str) -> Action:
    op, stage, microbatch = re.fullmatch(r"([A-Z_]+)(\d+)(?:\.(\d+))?", word).groups()
    return Action(op=Op(op), stage=int(stage), microbatch=int(microbatch or -1))


def program(words: str) -> list[Action]:
    return [at(word) for word in words.split()]


def made(name, p, m, v=1, group_size=None):
    return make_schedule(name, num_ranks=p, num_micro_batches=m, num_chunks=v, group_size=group_size)


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "words"),
    [
        ("1f1b", 1, 3, 1, ["F0.0 B0.0 F0.1 B0.1 F0.2 B0.2"]),
        ("1f1b", 2, 3, 1, ["F0.0 F0.1 B0.0 F0.2 B0.1 B0.2", "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"]),
        ("gpipe", 2, 2, 1, ["F0.0 F0.1 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1"]),
        (*("interleaved", 2, 3, 2), ["F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 B2.1 F2.2 B0.0 B0.1 B2.2 B0.2",
                                     "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 B1.1 F3.2 B3.2 B1.2"]),
        ("zb-h1", 2, 2, 1, ["F0.0 F0.1 I0.0 W0.0 I0.1 W0.1", "F1.0 I1.0 F1.1 I1.1 W1.0 W1.1"]),
        (*("zb-v", 2, 2, 2), ["F0.0 F0.1 F3.0 I3.0 W3.0 F3.1 I3.1 W3.1 I0.0 W0.0 I0.1 W0.1",
                              "F1.0 F2.0 F1.1 F2.1 I2.0 W2.0 I1.0 I2.1 I1.1 W1.0 W2.1 W1.1"]),
    ],
)  # fmt: skip
def test_texts(name, p, m, v, words):
    assert [text(p) for p in made(name, p, m, v)] == words


def test_a_backward_takes_twice_its_forward():
    assert simulate(made("1f1b", 1, 2)).length == 6


@pytest.mark.parametrize("lead", range(5))
def test_weave_keeps_both_orders(lead):
    forwards, backwards = program("F0.0 F0.1 F0.2"), program("B0.0 B0.1 B0.2")
    woven = weave(forwards, backwards, lead=lead)
    assert [a for a in woven if a.op is Op.F] == forwards
    assert [a for a in woven if a.op is Op.B] == backwards


def every_case():
    for name in SCHEDULES:
        for v in (1, 2, 3, 4) if fixed_chunks(name) is None else (fixed_chunks(name),):
            yield from ((name, v, p) for p in RANKS)


@pytest.mark.parametrize(("name", "v", "p"), list(every_case()))
def test_every_schedule_is_proven(name, v, p):
    """Complete, never stuck, messages in one order and finishing though each send waits: `lower` checks all four. Here
    too: nothing is lost by lowering, each message is sent once and goes to another rank, stages are where they belong.
    """
    for m in COUNTS:
        schedule = made(name, p, m, v)
        lowered = lower(schedule, num_micro_batches=m)
        assert [[a for a in program if a.op in COMPUTE] for program in lowered] == schedule
        place = placement(name, p, v)
        assert ranks_of_stages(schedule) == dict(enumerate(place))
        borders = [s for s in range(1, p * v) if place[s] != place[s - 1]]
        sent = {Action(op, s, n) for s in borders for n in range(m) for op in (Op.RECV_F, Op.SEND_B)}
        sent |= {Action(op, s - 1, n) for s in borders for n in range(m) for op in (Op.SEND_F, Op.RECV_B)}
        syncs = {Action(Op.GRAD_SYNC, stage) for stage in range(p * v)}
        counts = Counter(a for program in lowered for a in program if a.op not in COMPUTE)
        assert counts == Counter([*sent, *syncs])
        for program in lowered:
            backward = {a.stage: n for n, a in enumerate(program) if a.op in (Op.B, Op.I, Op.W)}
            sync = {a.stage: n for n, a in enumerate(program) if a.op is Op.GRAD_SYNC}
            assert all(backward[stage] < sync[stage] <= backward[stage] + 2 for stage in sync)
            assert sync.keys() == backward.keys()
