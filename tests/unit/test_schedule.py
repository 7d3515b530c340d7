"""Schedules as data: complete, never stuck, as costly as the formulas say, in the memory that they promise."""

import re
import time
from dataclasses import replace

import pytest

from megalite.schedule.action import COMPUTE, Action, Op, text
from megalite.schedule.check import (
    check_complete,
    check_pairs,
    peak_in_flight,
    peak_kept,
    ranks_of_stages,
    simulate,
)
from megalite.schedule.lower import lower
from megalite.schedule.schedules import SCHEDULES, fixed_chunks, forward_only, make_schedule, placement, weave

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


def counts(p, v):
    """Numbers of micro-batches: of many stages those around multiples of the ranks, where the last groups differ."""
    return [m for m in COUNTS if p * v <= 10 or m <= p + 1 or m % p in (0, 1, p - 1)]


@pytest.mark.parametrize(("name", "v", "p"), list(every_case()))
def test_every_schedule_is_proven(name, v, p):
    """Complete, never stuck, messages in one order and finishing though each send waits: `lower` checks all four. Here
    too: nothing is lost by lowering, each message is sent once and goes to another rank, stages are where they belong.
    """
    for m in counts(p, v):
        schedule = made(name, p, m, v)
        lowered = lower(schedule, num_micro_batches=m)
        assert [[a for a in program if a.op in COMPUTE] for program in lowered] == schedule
        place = placement(name, p, v)
        assert ranks_of_stages(schedule) == dict(enumerate(place))
        borders = [s for s in range(1, p * v) if place[s] != place[s - 1]]
        rest = [a for program in lowered for a in program if a.op not in COMPUTE]
        expected = {(op, s, n) for s in borders for n in range(m) for op in (Op.RECV_F, Op.SEND_B)}
        expected |= {(op, s - 1, n) for s in borders for n in range(m) for op in (Op.SEND_F, Op.RECV_B)}
        expected |= {(Op.GRAD_SYNC, stage, -1) for stage in range(p * v)}
        assert len(rest) == len(expected) and set(rest) == expected
        for program in lowered:
            backward = {a.stage: n for n, a in enumerate(program) if a.op in (Op.B, Op.I, Op.W)}
            sync = {a.stage: n for n, a in enumerate(program) if a.op is Op.GRAD_SYNC}
            assert all(backward[stage] < sync[stage] <= backward[stage] + 2 for stage in sync)
            assert sync.keys() == backward.keys()


def even(name, p, m, v):
    """The share of time that p ranks must wait: (p - 1) forwards and backwards of 1 + 2 units, or less where W fills
    the gaps. With v stages on a rank, a stage takes a v-th of the time.
    """
    gap = {"zb-h1": 1, "zb-v": 1}.get(name, 3) * (p - 1)
    return gap / (3 * m * v + gap)


@pytest.mark.parametrize(("name", "v", "p"), list(every_case()))
def test_bubble(name, v, p):
    for m in COUNTS:
        exact = {"interleaved": v == 1 or m % p == 0, "zb-h1": m >= p, "zb-v": m >= 2 * p}.get(name, True)
        bubble = simulate(made(name, p, m, v)).bubble
        assert bubble == pytest.approx(even(name, p, m, v)) if exact else bubble >= even(name, p, m, v) - 1e-9
        if name == "interleaved":
            assert bubble <= even("gpipe", p, m, 1) + 1e-9


@pytest.mark.parametrize("p", RANKS)
def test_memory(p):
    for m in COUNTS:
        assert [peak_in_flight(x) for x in made("gpipe", p, m)] == [(m, 0)] * p
        assert [peak_in_flight(x) for x in made("1f1b", p, m)] == [(min(m, p - r), 0) for r in range(p)]
        assert [peak_kept(x) for x in made("zb-h1", p, m)] == [min(m, p)] * p
        assert all(peak_kept(x) <= min(2 * m, 2 * p) for x in made("zb-v", p, m, 2))
        for v in (2, 3, 4):
            assert made("interleaved", p, m) == made("1f1b", p, m)
            bounds = [min(v * m, 2 * (p - 1 - r) + (v - 1) * min(p, m) + 1) for r in range(p)]
            assert all(peak_kept(x) <= b for x, b in zip(made("interleaved", p, m, v), bounds, strict=True))


def test_split_backward_is_counted_apart():
    split = program("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1")
    check_complete([split], num_stages=1, num_micro_batches=2)
    assert peak_in_flight(split) == (2, 2) and peak_kept(split) == 2
    assert simulate([split]).length == 6
    assert text(lower([split], num_micro_batches=2)[0]) == "F0.0 F0.1 I0.0 I0.1 W0.0 W0.1 GRAD_SYNC0"


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("group", [1, 2, 4, 7, 9, 16])
def test_groups_of_any_size_that_can_work(p, group):
    for m in (1, group, group + 1, 2 * group - 1, 2 * p + 1):
        lower(made("interleaved", p, m, 1, group), num_micro_batches=m)
        if group >= p - 1:
            lower(made("interleaved", p, m, 3, group), num_micro_batches=m)
        else:
            with pytest.raises(ValueError, match=rf"group-size-per-virtual-.* {group} .*at least {p - 1}. Try {p}\."):
                made("interleaved", p, m, 3, group)


@pytest.mark.parametrize(
    ("name", "p", "m", "chunks", "words"),
    [
        ("1f1b", 2, 2, 1, ["F0.0 SEND_F0.0 F0.1 SEND_F0.1", "RECV_F1.0 RECV_F1.1 F1.0 F1.1"]),
        (*("zb-v", 2, 1, 2), ["F0.0 SEND_F0.0 RECV_F3.0 F3.0", "RECV_F1.0 F1.0 F2.0 SEND_F2.0"]),
        ("interleaved", 1, 2, 2, ["F0.0 F1.0 F0.1 F1.1"]),
    ],
)
def test_evaluation(name, p, m, chunks, words):
    programs = lower(forward_only(placement(name, p, chunks), m), num_micro_batches=m, training=False)
    assert [text(x) for x in programs] == words


def test_evaluation_is_proven_for_every_placement():
    for name, v, p in every_case():
        for m in (1, 2, 3, 7, 8, 16, 17):
            lower(forward_only(placement(name, p, v), m), num_micro_batches=m, training=False)


def test_a_message_is_awaited_before_what_the_receiver_does_meanwhile():
    assert [text(x) for x in lower(made("1f1b", 2, 3), num_micro_batches=3)] == [
        "F0.0 SEND_F0.0 F0.1 SEND_F0.1 RECV_B0.0 B0.0 RECV_B0.1 F0.2 SEND_F0.2 B0.1 RECV_B0.2 B0.2 GRAD_SYNC0",
        "RECV_F1.0 RECV_F1.1 F1.0 B1.0 SEND_B1.0 F1.1 B1.1 SEND_B1.1 RECV_F1.2 F1.2 B1.2 SEND_B1.2 GRAD_SYNC1",
    ]


def test_neighbours_on_one_rank_send_nothing():
    two_stages = program("F0.0 F1.0 B1.0 B0.0")
    assert text(lower([two_stages], num_micro_batches=1)[0]) == "F0.0 F1.0 B1.0 GRAD_SYNC1 B0.0 GRAD_SYNC0"


def test_costs_by_action_and_lowered_programs():
    """Messages and sums take no time, so that lowering changes no timeline."""
    schedule = made("zb-h1", 3, 5)
    plain, lowered = simulate(schedule), simulate(lower(schedule, num_micro_batches=5))
    assert (lowered.length, lowered.busy, lowered.bubble) == (plain.length, plain.busy, plain.bubble)
    assert {a: t for a, t in lowered.begins.items() if a.op in COMPUTE} == plain.begins
    slow = simulate(made("1f1b", 2, 1), lambda action: 5 if action == at("F1.0") else 1.5)
    assert slow.ends[at("F1.0")] == 6.5 and slow.length == 9.5 and slow.busy == (3, 6.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("F0.0", r"leaves out: \['B0.0'\]"),
        ("B0.0", r"leaves out: \['F0.0'\]"),
        ("F0.0 I0.0", r"leaves out: \['B0.0'\]"),
        ("F0.0 F0.0 B0.0", r"does twice: \['F0.0'\]"),
        ("F0.0 B0.0 I0.0 W0.0", r"B0.0 beside I or W"),
        ("F0.0 B0.0 F0.1", r"does not know: \['F0.1'\]"),
        ("F0.0 B0.0 F1.0", r"does not know: \['F1.0'\]"),
    ],
)
def test_incomplete_schedule(words, message):
    with pytest.raises(ValueError, match=message):
        check_complete([program(words)], num_stages=1, num_micro_batches=1)


def test_weight_gradients_come_in_the_order_of_input_gradients():
    words = "F0.0 F0.1 I0.0 I0.1 W0.1 W0.0"
    with pytest.raises(ValueError, match=r"stages \[0\] come in another order"):
        check_complete([program(words)], num_stages=1, num_micro_batches=2)


def test_a_stage_is_on_one_rank():
    with pytest.raises(ValueError, match=r"does not know: \['F0.0 on rank 0'\]"):
        lower([program("F0.0"), program("B0.0")], num_micro_batches=1)


def test_much_that_is_missing_is_told_in_short():
    with pytest.raises(ValueError, match=r"leaves out: \['F0.2', 'B0.2', [^\]]*'F0.5', 'B0.5', '\.\.\.'\]"):
        lower(made("1f1b", 1, 2), num_micro_batches=300)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["F0.0 B0.0", "B1.0 F1.0"], "rank 0 waits with B0.0 for B1.0; rank 1 waits with B1.0 for F1.0"),
        (["F0.0 W0.0 I0.0", "F1.0 B1.0"], "rank 0 waits with W0.0 for I0.0"),
        (["I0.0 F0.0 W0.0", "F1.0 I1.0 W1.0"], "rank 0 waits with I0.0 for F0.0; rank 1 waits with F1.0 for F0.0"),
        (["F0.0 F0.1 B0.1 B0.0", "F1.0 B1.0 F1.1 B1.1"], None),
        (
            ["F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1"],
            "rank 0 waits with B0.0 for B1.0; rank 1 waits with F1.1 for F0.1",
        ),
    ],
)
def test_a_stuck_schedule_names_each_rank_and_what_it_waits_for(words, message):
    count = sum(word.startswith("F") for word in words[0].split())
    if message is None:
        lower([program(x) for x in words], num_micro_batches=count)
        return
    with pytest.raises(ValueError, match=f"stuck: {re.escape(message)}"):
        lower([program(x) for x in words], num_micro_batches=count)


PROGRAMS = ["F0.0 SEND_F0.0 RECV_B0.0 B0.0", "RECV_F1.0 F1.0 B1.0 SEND_B1.0"]


def criss_cross(program):
    """Receiving just before use, as nobody should."""
    late = []
    for action in program:
        if action.op in (Op.F, Op.B):
            receive = Action(Op.RECV_F if action.op is Op.F else Op.RECV_B, action.stage, action.microbatch)
            late += [receive] * (receive in program)
        late += [] if action.op in (Op.RECV_F, Op.RECV_B) else [action]
    return late


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: (a, b), None),
        (
            lambda a, b: (a[:1] + a[2:], b),
            "Ranks 0 and 1 .*: number 0 is RECV_B0.0 on rank 0, .* other end of SEND_F0.0 on",
        ),
        (lambda a, b: (a, b[1:]), "Ranks 0 and 1 .*: number 0 is SEND_F0.0 on rank 0, .* other end of RECV_B0.0 on"),
        (lambda a, b: (a[:2] + a[3:], b), "Ranks 0 and 1 .*: number 1 is none on rank 0, .* other end of RECV_B0.0"),
        (lambda a, b: (a, b[:-1]), "Ranks 0 and 1 .*: number 1 is RECV_B0.0 on rank 0, .* other end of none"),
        (lambda a, b: (a[:2] + a[3:], b[:-1]), "stuck: rank 0 waits with B0.0 for RECV_B0.0"),
        (lambda a, b: (a, b[1:2] + b[:1] + b[2:]), "stuck: .*rank 1 waits with F1.0 for RECV_F1.0"),
        (lambda a, b: (a[1:2] + a[:1] + a[2:], b), "stuck: rank 0 waits with SEND_F0.0 for F0.0"),
        (lambda a, b: (a, b[:2] + b[3:] + b[2:3]), "stuck: .*rank 1 waits with SEND_B1.0 for B1.0"),
        (lambda a, b: (a + program("SEND_B0.0"), b), "Rank 0 has SEND_B0.0, but no other rank holds stage -1"),
    ],
)
def test_broken_programs(change, message):
    broken = list(change(*map(program, PROGRAMS)))
    if message is None:
        check_pairs(broken)
        return
    with pytest.raises(ValueError, match=message):
        check_pairs(broken)


@pytest.mark.parametrize(("name", "v"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)])
def test_receiving_just_before_use_is_refused(name, v):
    lowered = lower(made(name, 4, 8, v), num_micro_batches=8)
    with pytest.raises(ValueError, match=r"do not see their messages in one order|stuck"):
        check_pairs([criss_cross(program) for program in lowered])


def test_ranks_in_a_ring_that_all_send_first_are_stuck():
    """Each pair agrees on its order, and all would end if messages were kept on the way; but nothing promises that."""

    def forwards(stage, receives=True):
        each = f"RECV_F{stage}.{{0}} " * receives + f"F{stage}.{{0}} " + f"SEND_F{stage}.{{0}} " * (stage < 5)
        return program("".join(each.format(microbatch) for microbatch in range(3)))

    ring = [forwards(0, receives=False) + forwards(3), forwards(1) + forwards(4), forwards(2) + forwards(5)]
    assert simulate(ring).length == 8
    waits = "rank 0 waits with SEND_F0.2 for RECV_F1.2; rank 1 waits with SEND_F1.1 for RECV_F2.1; rank 2 waits with "
    with pytest.raises(ValueError, match=re.escape(f"stuck: {waits}SEND_F2.0 for RECV_F3.0.")):
        check_pairs(ring)


def test_lowering_is_proven_too(monkeypatch):
    """Were the simulated moments wrong, the programs made of them would be refused."""
    schedule = made("1f1b", 2, 2)
    order = [at("B0.0"), *simulate(schedule).ends]
    lies = replace(simulate(schedule), ends={action: order.index(action) for action in order})
    monkeypatch.setattr("megalite.schedule.lower.simulate", lambda schedule: lies)
    with pytest.raises(
        ValueError, match=r"stuck: rank 0 waits with B0\.0 for F0\.0; rank 1 waits with F1\.0 for SEND_F0\.0"
    ):
        lower(schedule, num_micro_batches=2)


@pytest.mark.parametrize(
    ("name", "chunks", "message"),
    [
        ("dualpipe", 1, "--pipeline-schedule dualpipe is not known. Try one of gpipe, 1f1b, interleaved, zb-h1, zb-v."),
        ("1f1b", 2, "--pipeline-schedule 1f1b has 1 stage on each rank, not 2. Try 1."),
        ("zb-v", 1, "--pipeline-schedule zb-v has 2 stages on each rank, not 1. Try 2."),
        ("interleaved", 0, "--pipeline-schedule interleaved has at least 1 stage on each rank, not 0. Try 2."),
    ],
)
def test_what_no_schedule_is_made_for(name, chunks, message):
    for call in (lambda: placement(name, 2, chunks), lambda: made(name, 2, 2, chunks)):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_lowering_is_quick():
    """It happens at the start of every run, on every rank: 64 ranks and 512 micro-batches in a second or two."""
    begin = time.process_time()
    lower(made("1f1b", 32, 128), num_micro_batches=128)
    assert time.process_time() - begin < 2
