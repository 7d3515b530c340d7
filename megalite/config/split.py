"""How --data-path and --split are read."""

import math
from collections.abc import Sequence

DEFAULT_SPLIT = "969, 30, 1"


def split_shares(text: str) -> tuple[float, float, float]:
    """Three shares that sum to 1: `969, 30, 1` is (0.969, 0.03, 0.001); missing ones are 0.

    Quotes around the text are tolerated, since launch scripts often pass them along. ValueError names --split.
    """
    parts = text.strip().strip("'\"").split(",")
    try:
        shares = [float(part) for part in parts]
    except ValueError:
        shares = []
    total = sum(shares)
    if len(shares) > 3 or any(x < 0 for x in shares) or not (math.isfinite(total) and total > 0):
        raise ValueError(
            f"--split {text!r} is not one to three comma-separated shares, none negative and not all zero. "
            f"Try --split {DEFAULT_SPLIT.replace(' ', '')}."
        )
    first, second, third = (x / total for x in (shares + [0.0, 0.0])[:3])
    return first, second, third


def split_blend(entries: Sequence[str], flag: str) -> tuple[list[str], list[float] | None]:
    """Prefixes, and their weights where `weight prefix weight prefix ...` was given.

    ValueError names the flag: for a mixture of the two ways, and for weights that are not above zero.
    """
    numbers = [_number(entry) for entry in entries]
    if not entries:
        raise ValueError(f"{flag} is empty. Give the prefix of a .bin/.idx pair.")
    if all(number is None for number in numbers):
        return list(entries), None
    weights = [number for number in numbers[::2] if number is not None]
    if 2 * len(weights) != len(entries) or any(number is not None for number in numbers[1::2]):
        raise ValueError(
            f"{flag} {' '.join(entries)}: give either prefixes only, or a weight before each prefix, such as "
            f"0.3 data/a 0.7 data/b. A prefix that looks like a number is written with its folder, such as ./1."
        )
    if not all(weight > 0 and math.isfinite(weight) for weight in weights):
        raise ValueError(f"{flag} has the weights {weights}; each must be above 0. Leave out what weighs nothing.")
    return list(entries[1::2]), weights


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
