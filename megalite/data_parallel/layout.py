"""Where each parameter lies in a flat buffer that is cut into buckets, and what of it a rank owns.

    flat:    | bucket 0: head, final norm, last layers ... | pad | bucket 1 ...          | pad | tied embedding | pad |
    bucket:  | segment: decayed, split | segment: decayed, replicated | segment: not decayed ... |

Buckets follow the order in which backward finishes parameters: later stages first, and the reverse of the model's
order within a stage. In a bucket the parameters are sorted into segments that the optimizer and the norm treat alike,
so that each handles a few long vectors instead of hundreds of small ones. Segments, and the parts of a bucket that
ranks own, are padded to multiples of ALIGNED (arith/buckets.py), lest an update depend on where a vector ends. The
layout depends on names and shapes only: all dp ranks share it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from megalite.arith.buckets import PlacedBucket, length, place, shared
from megalite.arith.treatment import Kind, Treatment
from megalite.shard import Box, ShardSpec, boxes_of_range

Entry = tuple[str, nn.Parameter, ShardSpec]

Treat = Callable[[str, Sequence[int]], Treatment]
"""From a parameter's name and global shape."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One parameter and its range of the flat buffer."""

    name: str
    parameter: nn.Parameter
    spec: ShardSpec
    kind: Kind
    range: slice


@dataclass(frozen=True, kw_only=True)
class BucketPlan:
    """One bucket: its parameters, and where they are."""

    slots: tuple[Slot, ...]
    placed: PlacedBucket[Entry]

    @property
    def range(self) -> slice:
        """With padding."""
        return self.placed.range


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Neighbouring elements that are owned by this rank and treated alike, with the padding behind them."""

    kind: Kind
    range: slice
    """In the flat buffer."""
    local: slice
    """In a vector of all that is owned, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A box of one parameter that is owned by this rank, without padding."""

    slot: Slot
    box: Box
    range: slice
    local: slice


def plan(
    stages: Mapping[int, Sequence[Entry]],
    *,
    treat: Treat,
    tied: frozenset[str],
    bucket_size: int | None,
    shards: int,
) -> list[BucketPlan]:
    """The buckets in the order in which they travel; weights whose names are in `tied` have one each."""

    def sized(entry: Entry) -> tuple[int, Kind]:
        name, parameter, spec = entry
        kind = Kind(
            treatment=treat(name, spec.global_shape),
            replicated=spec.split_dim is None,
            owes_tp=spec.sum_grad_over_tp,
            owes_ends=spec.sum_grad_over_ends,
        )
        return parameter.numel(), kind

    buckets = []
    for placed in place(
        stages, sized=sized, is_tied=lambda entry: entry[0] in tied, bucket_size=bucket_size, shards=shards
    ):
        slots = []
        for one in placed.parameters:
            name, parameter, spec = one.parameter
            slots.append(Slot(name=name, parameter=parameter, spec=spec, kind=one.kind, range=one.range))
        buckets.append(BucketPlan(slots=tuple(slots), placed=placed))
    return buckets


def segments(buckets: Iterable[BucketPlan], own: Callable[[slice], slice]) -> list[Segment]:
    """What `own` leaves of each bucket, as it is treated."""
    found, offset = [], 0
    for bucket in buckets:
        for kind, run in bucket.placed.runs():
            where = shared(run, own(bucket.range))
            if size := length(where):
                local = slice(offset, offset + size)
                found.append(Segment(kind=kind, range=where, local=local))
                offset = local.stop
    return found


def pieces(buckets: Iterable[BucketPlan], segments: Iterable[Segment]) -> Iterator[Piece]:
    """What the segments have of each parameter, in their order."""
    slots = [slot for bucket in buckets for slot in bucket.slots]
    starts = [slot.range.start for slot in slots]
    for segment in segments:
        shift = segment.local.start - segment.range.start
        first = bisect_right(starts, segment.range.start) - 1
        for slot in slots[first : bisect_left(starts, segment.range.stop)]:
            begin = slot.range.start
            # The padding of the vocabulary is behind the box.
            real = shared(segment.range, slice(begin, begin + slot.spec.numel))
            for box, part in boxes_of_range(slot.spec.box, real.start - begin, real.stop - begin):
                where = slice(begin + part.start, begin + part.stop)
                yield Piece(slot=slot, box=box, range=where, local=slice(shift + where.start, shift + where.stop))
