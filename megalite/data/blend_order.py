"""The order in which the data sets of a blend take turns: Megatron's, computed for many stretches at once."""

from collections.abc import Sequence

import numpy as np

STRETCH = 64
"""Places in a stretch, at least: it must be long enough to forget a wrong guess of its beginning."""
WIDTH = 1 << 16
"""Stretches times data sets that are computed together, at most: what fits in a core's cache."""


def blend_order(
    weights: Sequence[float], size: int, limits: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Whose sample comes at each of `size` places (int16), and its number there (int64).

    Each place goes to the data set furthest behind its share, the first of equals; with `limits`, only to one that
    has not handed out all it has. So after any number of samples no share is off by more than about one sample.
    """
    shares = np.array(weights)
    caps = np.full(len(shares), np.inf) if limits is None else np.array(limits, np.float64)
    order = _order(shares, size, caps)
    samples = np.empty(size, np.int64)
    for index in range(len(weights)):
        places = order == index
        samples[places] = np.arange(np.count_nonzero(places))
    return order, samples


def _order(shares: np.ndarray, size: int, caps: np.ndarray) -> np.ndarray:
    """Whose sample comes at each place.

    A place depends on all places before it, through what each data set has given so far. So the places are cut into
    stretches that are computed side by side, each from a guess of what was given before; one that began with other
    counts than its predecessor ends with is computed anew from those. When none is left, all are as if computed one
    after another. Most guesses are mended within a stretch, since a set that is behind its share comes soon.
    """
    steps = max(STRETCH, 8 * len(shares), -(-size * len(shares) // WIDTH))
    begins = np.arange(max(1, -(-size // steps))) * steps
    drawn = _guess(shares, begins, caps, steps)
    order, ends = np.empty((len(begins), steps), np.int16), np.empty_like(drawn)
    stale = np.arange(len(begins))
    while stale.size:
        counts, rows = drawn[stale], np.arange(stale.size)
        for step in range(steps):
            behind = shares * np.maximum(begins[stale, None] + step, 1) - counts
            behind[counts >= caps] = -np.inf
            chosen = behind.argmax(1)
            order[stale, step] = chosen
            counts[rows, chosen] += 1
        ends[stale] = counts
        stale = 1 + np.flatnonzero((ends[:-1] != drawn[1:]).any(1))
        drawn[stale] = ends[stale - 1]
    return order.reshape(-1)[:size]


def _guess(shares: np.ndarray, begins: np.ndarray, caps: np.ndarray, steps: int) -> np.ndarray:
    """What each data set has given before each place of `begins`, about [places, sets].

    A rare set is guessed low, never high: one that has given too little gives at once, one that has given too much
    would be wrong until its next turn. What is missing to the sum is given to the frequent sets.
    """
    exact = begins[:, None] * shares
    guess = np.minimum(np.floor(exact), caps)
    frequent = shares * steps >= 4
    if not frequent.any():
        frequent[:] = True
    missing, number = begins - guess.sum(1), np.count_nonzero(frequent)
    rank = np.where(frequent, guess - exact, np.inf).argsort(1).argsort(1)
    extra = missing[:, None] // number + (rank < (missing % number)[:, None])
    return guess + np.where(frequent, extra, 0)
