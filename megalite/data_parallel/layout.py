"""Where each parameter lies in a flat buffer that is cut into buckets, and what of it a rank owns.

    flat:    | bucket 0: head, final norm, last layers ... | pad | bucket 1 ...          | pad | tied embedding | pad |
    bucket:  | segment: decayed, split | segment: decayed, replicated | segment: not decayed ... |

Buckets follow the order in which backward finishes parameters: later stages first, and the reverse of the model's
order within a stage. In a bucket the parameters are sorted into segments that the optimizer and the norm treat alike,
so that each handles a few long vectors instead of hundreds of small ones; padding makes it a whole number of parts,
one for each rank that owns one. The layout depends on names and shapes only: all dp ranks share it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import nn

from megalite.mesh import ParallelMesh
from megalite.shard import Box, ShardSpec, boxes_of_range

Entry = tuple[str, nn.Parameter, ShardSpec]


@dataclass(frozen=True, kw_only=True, order=True)
class Treatment:
    """What an update does to a parameter that it does not do to every other."""

    decayed: bool
    decoupled: bool = False
    """It has a learning rate of its own."""
    matrix: bool = False
    """It is updated as a whole matrix, not by elements."""


Treat = Callable[[str, ShardSpec], Treatment]


@dataclass(frozen=True, kw_only=True, order=True)
class Kind:
    """What distinguishes one segment from another: how its elements are updated, are replicas, which sums they owe."""

    treatment: Treatment
    replicated: bool
    owes_tp: bool
    owes_ends: bool

    def counts(self, mesh: ParallelMesh) -> bool:
        """Whether this rank counts its elements, so that the ranks of a model count each logical element once."""
        return (mesh.tp.rank == 0 or not self.replicated) and (mesh.ends.rank == 0 or not self.owes_ends)


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
    """One bucket: its stage, its parameters, and its range with padding."""

    stage: int
    slots: tuple[Slot, ...]
    range: slice


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Neighbouring elements that are owned by this rank and treated alike."""

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
    multiple_of: int,
) -> list[BucketPlan]:
    """The buckets in order: later stages first, tied weights last, each alone in its own."""
    contents: list[tuple[int, list[Entry]]] = []
    for stage, entries in sorted(stages.items(), reverse=True):
        untied = [entry for entry in reversed(entries) if entry[0] not in tied]
        contents += [(stage, bucket) for bucket in _cut(untied, bucket_size)]
    contents += [(stage, [entry]) for stage, entries in stages.items() for entry in entries if entry[0] in tied]

    buckets, offset = [], 0
    for stage, bucket in contents:
        slots, start = [], offset
        for name, parameter, spec in sorted(bucket, key=lambda entry: _kind(entry[0], entry[2], treat)):
            where = slice(offset, offset + parameter.numel())
            kind = _kind(name, spec, treat)
            slots.append(Slot(name=name, parameter=parameter, spec=spec, kind=kind, range=where))
            offset = where.stop
        offset = start + -(-(offset - start) // multiple_of) * multiple_of
        buckets.append(BucketPlan(stage=stage, slots=tuple(slots), range=slice(start, offset)))
    return buckets


def segments(buckets: Iterable[BucketPlan], own: Callable[[slice], slice]) -> list[Segment]:
    """What `own` leaves of each bucket, as it is treated."""
    found, offset = [], 0
    for bucket in buckets:
        for kind, run in groupby(bucket.slots, lambda slot: slot.kind):
            slots = list(run)
            where = _shared(slice(slots[0].range.start, slots[-1].range.stop), own(bucket.range))
            if where.start < where.stop:
                local = slice(offset, offset + where.stop - where.start)
                found.append(Segment(kind=kind, range=where, local=local))
                offset = local.stop
    return found


def pieces(buckets: Iterable[BucketPlan], own: Callable[[slice], slice]) -> Iterator[Piece]:
    """What `own` leaves of each parameter."""
    offset = 0
    for bucket in buckets:
        for slot in bucket.slots:
            where = _shared(slot.range, own(bucket.range))
            begin = slot.range.start
            # The padding of the vocabulary is behind the box.
            real = _shared(where, slice(begin, begin + slot.spec.numel))
            for box, part in boxes_of_range(slot.spec.box, real.start - begin, real.stop - begin):
                shift = offset - where.start + begin
                yield Piece(
                    slot=slot,
                    box=box,
                    range=slice(begin + part.start, begin + part.stop),
                    local=slice(shift + part.start, shift + part.stop),
                )
            offset += max(where.stop - where.start, 0)


def _shared(a: slice, b: slice) -> slice:
    start = max(a.start, b.start)
    return slice(start, max(start, min(a.stop, b.stop)))


def _cut(entries: Iterable[Entry], bucket_size: int | None) -> list[list[Entry]]:
    """The entries in buckets, of which each is closed once it holds at least `bucket_size` elements; None: in one."""
    buckets: list[list[Entry]] = []
    held = 0
    for entry in entries:
        if not buckets or (bucket_size is not None and held >= bucket_size):
            buckets.append([])
            held = 0
        buckets[-1].append(entry)
        held += entry[1].numel()
    return buckets


def _kind(name: str, spec: ShardSpec, treat: Treat) -> Kind:
    return Kind(
        treatment=treat(name, spec),
        replicated=spec.split_dim is None,
        owes_tp=spec.sum_grad_over_tp,
        owes_ends=spec.sum_grad_over_ends,
    )
