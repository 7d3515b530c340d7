"""Main grads of which a rank keeps no more than it owns: ZeRO, stage 2 (Rajbhandari et al. 2020)."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from megalite.arith.buckets import length, rooms, shared
from megalite.comm.collectives import Pending
from megalite.data_parallel.layout import Piece, Segment, Slot
from megalite.data_parallel.main_grads import Bucket, MainGrads
from megalite.data_parallel.policy import Policy


class OwnedGrads(MainGrads):
    """A vector of what is owned. Each micro-batch is summed over the ranks that share it, and what is owned of the sums
    is added up.

    A bucket is written in memory that it shares with others, and that is its own until its sum is in: without `overlap`
    at once, with it when another needs the memory. Two that are neighbours have room beside each other; one that is
    written while another in its room still is gets memory of its own. A tied weight, which is written from the first to
    the last moment of a backward, has some from the start.
    """

    sums_each = True

    def __init__(
        self, buckets: Sequence[Bucket], policy: Policy, *, overlap: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(buckets, policy, overlap=overlap, dtype=dtype, device=device)
        self._starts = [bucket.range.start for bucket in buckets]
        self._gaps = {bucket: list(_padding(bucket)) for bucket in buckets}
        untied = [bucket for bucket in buckets if bucket.by_readiness]
        self._rooms = dict(zip(untied, rooms([len(bucket) for bucket in untied]), strict=True))
        self._memory = self.vector.new_empty(max((room.stop for room in self._rooms.values()), default=0))
        self._apart = {bucket: self.vector.new_empty(len(bucket)) for bucket in buckets if not bucket.by_readiness}
        """Memory that a bucket has for itself alone."""
        self._written: set[Bucket] = set()
        self._under_way: deque[tuple[Bucket, Pending]] = deque()
        self._summed: set[Bucket] = set()
        """Those of which this step has a sum."""

    def _elements(self) -> int:
        return super()._elements() // self.policy.shards

    @property
    def leave_when_full(self) -> bool:
        return True

    @property
    def lent(self) -> int:
        return sum(memory.nbytes for memory in (self._memory, *self._apart.values()))

    def view(self, slot: Slot, bucket: Bucket) -> Callable[[], Tensor]:
        where = slice(slot.range.start - bucket.range.start, slot.range.stop - bucket.range.start)
        return lambda: self._room(bucket)[where].view(slot.parameter.shape)

    def of(self, owned: Segment | Piece) -> Tensor:
        bucket = self.buckets[bisect_right(self._starts, owned.range.start) - 1]
        start = self._kept(bucket).start + owned.range.start - self.policy.own(bucket.range).start
        return self.vector[start : start + length(owned.range)]

    def _kept(self, bucket: Bucket) -> slice:
        return slice(bucket.range.start // self.policy.shards, bucket.range.stop // self.policy.shards)

    def _room(self, bucket: Bucket) -> Tensor:
        """The memory in which the bucket is written, which is free for it."""
        if bucket not in self._written:
            while any(self._collide(bucket, other) for other, _ in self._under_way):
                self._collect()
            if any(self._collide(bucket, other) for other in self._written):
                self._apart[bucket] = self.vector.new_empty(len(bucket))
            self._written.add(bucket)
            for gap in self._gaps[bucket]:
                self._of(bucket)[gap].zero_()
        return self._of(bucket)

    def _of(self, bucket: Bucket) -> Tensor:
        return self._apart[bucket] if bucket in self._apart else self._memory[self._rooms[bucket]]

    def _collide(self, a: Bucket, b: Bucket) -> bool:
        """Whether the two cannot have their memory at once."""
        if a in self._apart or b in self._apart:
            return a is b
        return length(shared(self._rooms[a], self._rooms[b])) > 0

    def send(self, bucket: Bucket) -> None:
        self._written.remove(bucket)
        self._under_way.append((bucket, self.policy.start_sum(self._of(bucket))))
        if not self.overlap:
            self._collect()

    def _collect(self) -> None:
        """Take in the sum that is under way for longest."""
        bucket, pending = self._under_way.popleft()
        kept, mine = self.vector[self._kept(bucket)], pending.wait()
        if bucket in self._summed:
            kept.add_(mine)
        else:
            kept.copy_(mine)
        self._summed.add(bucket)

    def _in_turn(self) -> Iterator[Bucket]:
        while self._under_way:
            self._collect()
        assert not self._written, "a bucket was written after its sum began"
        self._summed.clear()
        yield from self.buckets

    def in_flight(self) -> int:
        on_way = [len(bucket) for bucket, pending in self._under_way if not pending.is_done]
        return sum(on_way) * self.vector.itemsize


def _padding(bucket: Bucket) -> Iterator[slice]:
    """The parts of a bucket that are nobody's, counted from its start."""
    start = bucket.range.start
    edges = [start, *(edge for slot in bucket.slots for edge in (slot.range.start, slot.range.stop)), bucket.range.stop]
    for first, stop in list(pairwise(edges))[::2]:
        if first < stop:
            yield slice(first - start, stop - start)
