"""The batch size as a function of the samples consumed, and the steps that samples make."""

import pytest

from megalite.config.batch_schedule import BatchSchedule, constant, from_steps, ramp_up, rounded_down

SCHEDULES = {
    "constant": constant(6),
    "ramp": ramp_up(4, 4, 24, goal=16),
    "ramp that no increment divides": ramp_up(2, 3, 50, goal=17),
    "ramp within one batch": ramp_up(4, 4, 3, goal=16),
    "steps": from_steps(["0:4 160:12 480:6"], seq_length=8),
}


def megatron(start: int, increment: int, samples: int, goal: int, consumed: int) -> int:
    """Megatron-LM's rule, with its floats."""
    per_increment = samples / ((goal - start) // increment)
    return goal if consumed > samples else start + increment * int(consumed / per_increment)


@pytest.mark.parametrize(("start", "increment", "samples", "goal"), [(4, 4, 24, 16), (2, 3, 47, 17), (1, 1, 7, 4)])
def test_ramp_up_is_megatrons(start, increment, samples, goal):
    schedule = ramp_up(start, increment, samples, goal=goal)
    expected = [megatron(start, increment, samples, goal, consumed) for consumed in range(2 * samples)]
    assert [schedule(consumed) for consumed in range(2 * samples)] == expected


def test_a_ramp_without_a_rise():
    assert ramp_up(8, 4, 100, goal=8) == constant(8)
    assert ramp_up(4, 4, 0, goal=16)(0) == 16


@pytest.mark.parametrize("name", SCHEDULES)
def test_steps_and_samples_are_those_of_a_run(name):
    schedule, run = SCHEDULES[name], [0]
    while len(run) < 60:
        run.append(run[-1] + schedule(run[-1]))
    assert [schedule.samples(steps) for steps in range(60)] == run
    for until in range(run[-1]):
        whole = sum(consumed <= until for consumed in run) - 1
        assert schedule.steps(until) == whole
    for number, consumed in enumerate(run[:-1]):
        assert schedule.steps(run[-1], consumed=consumed) == 59 - number
        assert schedule.steps(consumed, consumed=run[-1]) == 0


def test_steps_in_tokens():
    assert from_steps(["0:16 2.4B:320"], seq_length=4096).sizes == ((0, 16), (585937, 320))
    assert from_steps(["0:16", "1.5k:32", "2M:64"], seq_length=10).sizes == ((0, 16), (150, 32), (200000, 64))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must begin with 0"),
        ("5:16 10:32", "must begin with 0"),
        ("0:16 80:32 80:64", "Put the entries in order"),
        ("0:16 81:32 84:64", "is not later than the size before it"),
        ("0:16 2Q:32", "'2Q:32', which is not TOKENS:SIZE"),
        ("0:16 -5:32", "'-5:32', which is not"),
        ("0:0", "'0:0', which is not"),
        ("16", "'16', which is not"),
    ],
)
def test_steps_that_are_none(text, words):
    with pytest.raises(ValueError, match=words):
        from_steps([text], seq_length=8)


def test_rounded_down():
    assert rounded_down(BatchSchedule(sizes=((0, 9), (5, 3))), 4).sizes == ((0, 8), (5, 3))
