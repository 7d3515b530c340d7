"""How parameters share out gradient buckets, by their lengths alone: the buffer is built by it, and so is its plan."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Generic, TypeVar

from megalite.arith.treatment import Kind

ALIGNED = 64
"""Elements: no vector that is updated begins or ends but at a multiple. What is left over of a CPU's registers would be
rounded apart, and an update depend on what travels with it."""

Parameter = TypeVar("Parameter")


@dataclass(frozen=True, kw_only=True)
class Placed(Generic[Parameter]):
    """One of the parameters that are dealt out, and its range of the flat buffer."""

    parameter: Parameter
    kind: Kind
    range: slice


@dataclass(frozen=True, kw_only=True)
class PlacedBucket(Generic[Parameter]):
    """Its stage, its parameters in their order, and its range with padding."""

    stage: int
    tied: bool
    """It is that of a tied weight, alone."""
    parameters: tuple[Placed[Parameter], ...]
    range: slice

    def __len__(self) -> int:
        return length(self.range)

    def runs(self) -> Iterator[tuple[Kind, slice]]:
        """Each kind, and the range of what is of it, with the padding behind: together all of the bucket."""
        for kind, run in groupby(self.parameters, lambda placed: placed.kind):
            members = list(run)
            stop = rounded_up(members[-1].range.stop, ALIGNED)
            yield kind, slice(members[0].range.start, self.range.stop if members[-1] is self.parameters[-1] else stop)


def place(
    stages: Mapping[int, Sequence[Parameter]],
    *,
    sized: Callable[[Parameter], tuple[int, Kind]],
    is_tied: Callable[[Parameter], bool],
    bucket_size: int | None,
    shards: int,
) -> list[PlacedBucket[Parameter]]:
    """The buckets of the stages' parameters in the order of backward: later stages first, and within a stage the last
    parameter; tied weights behind them, each alone in its own. `sized` gives a parameter's length and kind.

    A bucket is closed once it holds `bucket_size` elements; None: all of a stage are in one. It is a whole number of
    parts, one for each shard, and these and what is of one kind are padded to multiples of ALIGNED.
    """
    groups: list[tuple[int, bool, list[tuple[Parameter, int, Kind]]]] = []
    for stage, parameters in sorted(stages.items(), reverse=True):
        untied = [(parameter, *sized(parameter)) for parameter in reversed(parameters) if not is_tied(parameter)]
        groups += [(stage, False, chosen) for chosen in _cut(untied, bucket_size)]
    for stage, parameters in stages.items():
        groups += [(stage, True, [(parameter, *sized(parameter))]) for parameter in parameters if is_tied(parameter)]

    found: list[PlacedBucket[Parameter]] = []
    start = 0
    for stage, tied, chosen in groups:
        placed, first = [], start
        for kind, run in groupby(sorted(chosen, key=lambda one: one[2]), lambda one: one[2]):
            for parameter, elements, _ in run:
                placed.append(Placed(parameter=parameter, kind=kind, range=slice(start, start + elements)))
                start += elements
            start = rounded_up(start, ALIGNED)
        start = first + rounded_up(start - first, ALIGNED * shards)
        found.append(PlacedBucket(stage=stage, tied=tied, parameters=tuple(placed), range=slice(first, start)))
    return found


def _cut(
    parameters: Sequence[tuple[Parameter, int, Kind]], bucket_size: int | None
) -> list[list[tuple[Parameter, int, Kind]]]:
    """Which parameters are in each bucket."""
    buckets: list[list[tuple[Parameter, int, Kind]]] = []
    held = 0
    for one in parameters:
        if not buckets or (bucket_size is not None and held >= bucket_size):
            buckets.append([])
            held = 0
        buckets[-1].append(one)
        held += one[1]
    return buckets


def rooms(lengths: Sequence[int]) -> list[slice]:
    """Where in a memory buckets of these lengths are written, where no more than what is owned of main grads is kept:
    in turn at its front and at its back. So there is room for any two neighbours, one that is written, and one whose
    sum is on its way."""
    size = max(map(sum, pairwise([*lengths, 0])), default=0)
    return [slice(size - n, size) if number % 2 else slice(0, n) for number, n in enumerate(lengths)]


def rounded_up(count: int, multiple: int) -> int:
    """The least multiple that is not less."""
    return -(-count // multiple) * multiple


def part_of(bucket: slice, rank: int, shards: int) -> slice:
    """What one of so many ranks owns of a bucket that they share."""
    size = length(bucket) // shards
    return slice(bucket.start + rank * size, bucket.start + (rank + 1) * size)


def shared(a: slice, b: slice) -> slice:
    """What two ranges have in common; empty where that is nothing."""
    start = max(a.start, b.start)
    return slice(start, max(start, min(a.stop, b.stop)))


def length(where: slice) -> int:
    """The elements of a range."""
    return int(where.stop - where.start)
