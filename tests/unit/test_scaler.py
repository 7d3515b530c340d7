"""The loss scale as Megatron moves it."""

import pytest

from megalite.optimizer.scaler import ConstantScale, DynamicScale


def scale(value: float = 64.0, *, minimum: float = 1.0, window: int = 3, hysteresis: int = 2) -> DynamicScale:
    return DynamicScale(value, minimum=minimum, window=window, hysteresis=hysteresis)


def course(scaler: ConstantScale, steps: str) -> list[float]:
    """The scale after each step; o is an overflow."""
    values = []
    for step in steps:
        scaler.update(overflow=step == "o")
        values.append(scaler.value)
    return values


@pytest.mark.parametrize(
    ("steps", "values"),
    [
        ("o", [64]),
        ("oo", [64, 32]),
        ("ooo", [64, 32, 16]),
        ("o.o", [64, 64, 32]),  # the hysteresis need not be used up in a row
        ("oo.o", [64, 32, 32, 16]),  # and is full again only when the scale grows
        ("...", [64, 64, 128]),
        ("..o...", [64, 64, 64, 64, 64, 128]),  # an overflow begins the window anew
        ("oo...o", [64, 32, 32, 32, 64, 64]),
        ("......", [64, 64, 128, 128, 128, 256]),
        ("oooooooooo", [64, 32, 16, 8, 4, 2, 1, 1, 1, 1]),
    ],
)
def test_courses(steps: str, values: list[float]) -> None:
    assert course(scale(), steps) == values


def test_one_overflow_is_enough_without_hysteresis() -> None:
    assert course(scale(hysteresis=1), "oo") == [32, 16]


def test_the_minimum_need_not_be_a_power_of_two() -> None:
    assert course(scale(minimum=24.0), "ooo") == [64, 32, 24]


def test_a_scale_may_fall_until_it_is_stuck() -> None:
    scaler = scale(4.0)
    hopes = []
    for _ in range(5):
        hopes.append(scaler.may_fall)
        scaler.update(overflow=True)
    assert hopes == [True, True, True, False, False]
    assert not ConstantScale(4.0).may_fall


@pytest.mark.parametrize("before", ["", "o", "oo..", "....", "ooooooooooo."])
def test_it_goes_on_as_if_nothing_had_happened(before: str) -> None:
    first, second = scale(), scale()
    course(first, before)
    second.load(first.state())
    assert course(first, "..oo...oo") == course(second, "..oo...oo")


def test_a_constant_scale_stays() -> None:
    assert course(ConstantScale(8.0), "oo....") == [8.0] * 6
