"""Constants of a machine from its timed runs: one set each, drawn to physical guesses where runs say nothing."""

from collections.abc import Sequence
from dataclasses import fields, replace
from math import exp, log

from plan_rows import Case

from megalite.plan.rates import Rates
from megalite.plan.step import step_time

GUESS = Rates()
LEAST, MOST = 0.05, 1.15
"""Shares of a data sheet stay within these; a little above 1, since the sheet's own figures are measured."""
SHARES = ("matmul", "attention", "memory", "intra", "inter")
NAMES = tuple(field.name for field in fields(Rates) if field.name != "origin")
PULLS = dict.fromkeys((*SHARES, "edge"), 1.0)
"""How sure a guess is: waits, unlike shares, may be many times longer."""
PULL = 0.04
"""What a constant that is e times its guess costs, in the error of one run."""


def predicted(case: Case, rates: Rates) -> float:
    """Seconds of a step."""
    return step_time(case.size, case.layout, case.practice, case.cluster, rates).total


def errors(cases: Sequence[Case], rates: Rates) -> list[float]:
    """Relative errors of predicted times."""
    return [predicted(case, rates) / case.seconds - 1 for case in cases]


def loss(cases: Sequence[Case], rates: Rates, guess: Rates = GUESS) -> float:
    """Mean error, and what strays from the guess."""
    error = sum(abs(log(predicted(case, rates) / case.seconds)) for case in cases) / len(cases)
    strayed = sum(PULLS.get(name, 0.1) * log(getattr(rates, name) / getattr(guess, name)) ** 2 for name in NAMES)
    return error + PULL * strayed / min(len(cases), 30)


def fit(cases: Sequence[Case], *, start: Rates = GUESS, guess: Rates = GUESS, origin: str = "fitted") -> Rates:
    """Coordinate descent in the logarithm of each constant, with shrinking steps."""
    best, least = start, loss(cases, start, guess)
    stride = dict.fromkeys(NAMES, 0.4)
    while max(stride.values()) > 0.01:
        for name in NAMES:
            moved = False
            for sign in (1, -1):
                value = getattr(best, name) * exp(sign * stride[name])
                if name in SHARES:
                    value = min(max(value, LEAST), MOST)
                tried = replace(best, **{name: value})
                if (found := loss(cases, tried, guess)) < least - 1e-7:
                    best, least, moved = tried, found, True
                    break
            stride[name] *= 1.3 if moved else 0.5
    rounded = {name: float(f"{getattr(best, name):.3g}") for name in NAMES}
    return Rates(**rounded, origin=origin)
