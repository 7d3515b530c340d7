"""Schedules as data: complete, never stuck, as costly as the formulas say."""

from itertools import pairwise

import pytest

from megalite.schedule.action import Action, Op, text
from megalite.schedule.check import check_complete, peak_in_flight, simulate
from megalite.schedule.lower import lower
from megalite.schedule.schedules import forward_only, gpipe, one_f_one_b, weave

SIZES = [(p, m) for p in (1, 2, 3, 4, 7) for m in (1, 2, 3, 4, 8, 13)]


def at(word: str) -> Action:
    stage, _, microbatch = word[1:].partition(".")
    return Action(op=Op(word[0]), stage=int(stage), microbatch=int(microbatch))


def program(words: str) -> list[Action]:
    return [at(word) for word in words.split()]


def test_one_rank_is_gradient_accumulation():
    assert text(one_f_one_b(1, 3)[0]) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2"
    assert text(lower(one_f_one_b(1, 2), num_micro_batches=2)[0]) == "F0.0 B0.0 F0.1 B0.1 GRAD_SYNC0"


def test_a_backward_takes_twice_its_forward():
    assert simulate(one_f_one_b(1, 2)).length == 6


def test_texts():
    assert [text(p) for p in one_f_one_b(2, 3)] == [
        "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2",
        "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2",
    ]
    assert text(gpipe(2, 2)[1]) == "F1.0 F1.1 B1.0 B1.1"
    assert text(forward_only(2, 2)[1]) == "F1.0 F1.1"


@pytest.mark.parametrize("lead", range(4))
def test_weave_keeps_both_orders(lead):
    forwards, backwards = program("F0.0 F0.1 F0.2"), program("B0.0 B0.1 B0.2")
    woven = weave(forwards, backwards, lead=lead)
    assert [a for a in woven if a.op is Op.F] == forwards
    assert [a for a in woven if a.op is Op.B] == backwards


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("make", [one_f_one_b, gpipe])
def test_complete_and_bubble(make, p, m):
    """Both have the bubble (p - 1) / (m + p - 1) of all time; Huang et al. 2019, Narayanan et al. 2021."""
    schedule = make(p, m)
    check_complete(schedule, num_stages=p, num_micro_batches=m)
    timeline = simulate(schedule)
    assert timeline.bubble == pytest.approx((p - 1) / (m + p - 1))
    for rank_program in schedule:
        assert all(timeline.ends[a] <= timeline.begins[b] for a, b in pairwise(rank_program))
    for stage in range(1, p):
        for microbatch in range(m):
            f_before, f = at(f"F{stage - 1}.{microbatch}"), at(f"F{stage}.{microbatch}")
            b_before, b = at(f"B{stage}.{microbatch}"), at(f"B{stage - 1}.{microbatch}")
            assert timeline.ends[f_before] <= timeline.begins[f] < timeline.ends[b_before] <= timeline.begins[b]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_peak_in_flight(p, m):
    assert [peak_in_flight(x) for x in one_f_one_b(p, m)] == [(min(m, p - rank), 0) for rank in range(p)]
    assert [peak_in_flight(x) for x in gpipe(p, m)] == [(m, 0)] * p
    check_complete(forward_only(p, m), num_stages=p, num_micro_batches=m, training=False)


def test_split_backward_is_counted_apart():
    split = program("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1")
    check_complete([split], num_stages=1, num_micro_batches=2)
    assert peak_in_flight(split) == (2, 2)
    assert simulate([split]).length == 6
    assert text(lower([split], num_micro_batches=2)[0]) == "F0.0 F0.1 I0.0 I0.1 W0.0 W0.1 GRAD_SYNC0"


def test_stuck_schedule_names_each_rank_and_what_it_waits_for():
    with pytest.raises(
        ValueError, match=r"stuck: rank 0 waits with B0.0 for B1.0 or I1.0; rank 1 waits with B1.0 for F1.0"
    ):
        lower([program("F0.0 B0.0"), program("B1.0 F1.0")], num_micro_batches=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("F0.0", r"leaves out: \['B0.0'\]"),
        ("B0.0", r"leaves out: \['F0.0'\]"),
        ("F0.0 I0.0", r"leaves out: \['B0.0'\]"),
        ("F0.0 F0.0 B0.0", r"does twice: \['F0.0'\]"),
        ("F0.0 B0.0 I0.0 W0.0", r"B0.0 beside I0.0 or W0.0"),
        ("F0.0 B0.0 F0.1", r"does not know: \['F0.1'\]"),
        ("F0.0 B0.0 F1.0", r"does not know: \['F1.0'\]"),
    ],
)
def test_incomplete_schedule(words, message):
    with pytest.raises(ValueError, match=message):
        check_complete([program(words)], num_stages=1, num_micro_batches=1)


def test_grad_sync_follows_the_last_backward_of_each_stage():
    two_stages = program("F0.0 F1.0 B1.0 B0.0")
    assert text(lower([two_stages], num_micro_batches=1)[0]) == "F0.0 F1.0 B1.0 GRAD_SYNC1 B0.0 GRAD_SYNC0"
    assert text(lower(forward_only(1, 2), num_micro_batches=2, training=False)[0]) == "F0.0 F0.1"


def test_lowering_refuses_a_schedule_that_leaves_a_micro_batch_out():
    with pytest.raises(ValueError, match=r"leaves out: .*F0\.2"):
        lower(one_f_one_b(1, 2), num_micro_batches=3)
