"""How parameters share out gradient buckets, by their lengths alone: the buffer is built by it, and so is its plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

ALIGNED = 64
"""Elements: no vector that is updated begins or ends but at a multiple. What is left over of a CPU's registers would be
rounded apart, and an update depend on what travels with it."""

ROOMS = 2
"""Buckets that have memory at once where no more than what is owned of main grads is kept: one that is written, and one
whose sum is on its way."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One of the parameters that are dealt out, and its range of the flat buffer."""

    index: int
    kind: Any
    """Comparable: what is of one kind in a bucket lies together."""
    range: slice


@dataclass(frozen=True, kw_only=True)
class PlacedBucket:
    """Its parameters in their order, and its range with padding."""

    parameters: tuple[Placed, ...]
    range: slice

    def __len__(self) -> int:
        return self.range.stop - self.range.start

    def runs(self) -> Iterator[tuple[Any, slice]]:
        """Each kind, and the range of what is of it, with the padding behind: together all of the bucket."""
        for kind, run in groupby(self.parameters, lambda placed: placed.kind):
            members = list(run)
            stop = rounded_up(members[-1].range.stop, ALIGNED)
            yield kind, slice(members[0].range.start, self.range.stop if members[-1] is self.parameters[-1] else stop)


def place(
    parameters: Sequence[tuple[int, Any]], bucket_size: int | None, *, shards: int, start: int
) -> list[PlacedBucket]:
    """Buckets for parameters (length, kind) in the order of backward, from a place in the flat buffer on.

    A bucket is closed once it holds `bucket_size` elements; None: all are in one. It is a whole number of parts, one
    for each shard, and these and what is of one kind are padded to multiples of ALIGNED.
    """
    found: list[PlacedBucket] = []
    for chosen in _cut([length for length, _ in parameters], bucket_size):
        placed, first = [], start
        for kind, run in groupby(sorted(chosen, key=lambda i: parameters[i][1]), lambda i: parameters[i][1]):
            for index in run:
                placed.append(Placed(index=index, kind=kind, range=slice(start, start + parameters[index][0])))
                start += parameters[index][0]
            start = rounded_up(start, ALIGNED)
        start = first + rounded_up(start - first, ALIGNED * shards)
        found.append(PlacedBucket(parameters=tuple(placed), range=slice(first, start)))
    return found


def _cut(lengths: Sequence[int], bucket_size: int | None) -> list[list[int]]:
    """Which parameters are in each bucket."""
    buckets: list[list[int]] = []
    held = 0
    for index, length in enumerate(lengths):
        if not buckets or (bucket_size is not None and held >= bucket_size):
            buckets.append([])
            held = 0
        buckets[-1].append(index)
        held += length
    return buckets


def rounded_up(count: int, multiple: int) -> int:
    """The least multiple that is not less."""
    return -(-count // multiple) * multiple


def part_of(bucket: slice, rank: int, shards: int) -> slice:
    """What one of so many ranks owns of a bucket that they share."""
    length = (bucket.stop - bucket.start) // shards
    return slice(bucket.start + rank * length, bucket.start + (rank + 1) * length)


def shared(a: slice, b: slice) -> slice:
    """What two ranges have in common; empty where that is nothing."""
    start = max(a.start, b.start)
    return slice(start, max(start, min(a.stop, b.stop)))
