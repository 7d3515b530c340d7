"""Boxes of a global tensor: what two of them share, and what is left of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Whoever reads a table of tensors need not have torch.
    from megalite.shard import Box


def whole(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return tuple((0, n) for n in shape)


def volume(box: Box) -> int:
    """The number of elements in a box."""
    return math.prod(stop - start for start, stop in box)


def intersect(a: Box, b: Box) -> Box | None:
    """What two boxes of one tensor share; None where that is nothing."""
    shared = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return None if any(start >= stop for start, stop in shared) else shared


def subtract(a: Box, b: Box) -> list[Box]:
    """a without b, in at most two boxes for each dimension."""
    shared = intersect(a, b)
    if shared is None:
        return [a] if volume(a) else []
    left = []
    for dim, ((start, stop), (low, high)) in enumerate(zip(a, shared, strict=True)):
        # Dimensions before this one are already cut to what is shared, those after it are still whole.
        cuts = [cut for cut in ((start, low), (high, stop)) if cut[0] < cut[1]]
        left += [(*shared[:dim], cut, *a[dim + 1 :]) for cut in cuts]
    return left


def uncovered(box: Box, parts: Iterable[Box]) -> list[Box]:
    """What no part covers of a box; the parts may overlap."""
    left = [box] if volume(box) else []
    for part in sorted(parts):
        left = [rest for piece in left for rest in subtract(piece, part)]
        if not left:
            break
    return left


def slices(box: Box, within: Box) -> tuple[slice, ...]:
    """The index of a box into the memory that holds the box `within`."""
    return tuple(slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, within, strict=True))


def describe(box: Box) -> str:
    """A box as a reader of errors wants it: [0:4, 8:16]."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"
