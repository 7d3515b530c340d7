"""The --split of documents into training, validation and test."""

import math

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
