"""Main grads of which a rank keeps no more than it owns: ZeRO, stage 2 (Rajbhandari et al. 2020)."""

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from megalite.arith.buckets import ROOMS
from megalite.comm.collectives import Pending
from megalite.data_parallel.layout import Piece, Segment, Slot
from megalite.data_parallel.main_grads import Bucket, MainGrads
from megalite.data_parallel.policy import Policy


class OwnedGrads(MainGrads):
    """A vector of what is owned. Each micro-batch is summed over dp, and what is owned of the sums is added up.

    A bucket borrows memory when it is first written, and gives it back once its sum is in: without `overlap` at once,
    with it when another bucket needs the memory. There is more than of ROOMS buckets only where more of them are
    written at the same time. A tied weight, which is written from the first to the last moment of a backward, has
    memory of its own.
    """

    def __init__(
        self, buckets: Sequence[Bucket], policy: Policy, *, overlap: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(buckets, policy, overlap=overlap, dtype=dtype, device=device)
        self._starts = [bucket.range.start for bucket in buckets]
        self._gaps = {bucket: list(_padding(bucket)) for bucket in buckets}
        self._largest = max((len(bucket) for bucket in buckets if bucket.by_readiness), default=0)
        self._rooms: Counter[int] = Counter()
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._written: dict[Bucket, Tensor] = {}
        self._under_way: deque[tuple[Bucket, Tensor, Pending]] = deque()
        self._summed: set[Bucket] = set()
        """Those of which this step has a sum."""

    def _elements(self) -> int:
        return super()._elements() // self.policy.shards

    @property
    def leave_when_full(self) -> bool:
        return True

    @property
    def lent(self) -> int:
        return sum(size * count for size, count in self._rooms.items()) * self.vector.itemsize

    def place(self, slot: Slot, bucket: Bucket) -> Callable[[], Tensor]:
        where = slice(slot.range.start - bucket.range.start, slot.range.stop - bucket.range.start)
        return lambda: self._memory(bucket)[where].view(slot.parameter.shape)

    def of(self, owned: Segment | Piece) -> Tensor:
        bucket = self.buckets[bisect_right(self._starts, owned.range.start) - 1]
        start = self._kept(bucket).start + owned.range.start - self.policy.own(bucket.range).start
        return self.vector[start : start + owned.range.stop - owned.range.start]

    def _kept(self, bucket: Bucket) -> slice:
        """Where the vector has what is owned of a bucket."""
        return slice(bucket.range.start // self.policy.shards, bucket.range.stop // self.policy.shards)

    def _memory(self, bucket: Bucket) -> Tensor:
        if bucket not in self._written:
            size, rooms = (self._largest, ROOMS) if bucket.by_readiness else (len(bucket), 1)
            while not self._free[size] and self._rooms[size] >= rooms and self._under_way:
                self._collect()
            if self._free[size]:
                memory = self._free[size].pop()
            else:
                memory = self.vector.new_empty(size)
                self._rooms[size] += 1
            for gap in self._gaps[bucket]:
                memory[gap].zero_()
            self._written[bucket] = memory
        return self._written[bucket]

    def send(self, bucket: Bucket) -> None:
        memory = self._written.pop(bucket)
        self._under_way.append((bucket, memory, self.policy.start_sum(memory[: len(bucket)])))
        if not self.overlap:
            self._collect()

    def _collect(self) -> None:
        """Take in the sum that is under way for longest."""
        bucket, memory, pending = self._under_way.popleft()
        kept, mine = self.vector[self._kept(bucket)], pending.wait()
        if bucket in self._summed:
            kept.add_(mine)
        else:
            kept.copy_(mine)
        self._summed.add(bucket)
        self._free[len(memory)].append(memory)

    def finish(self) -> None:
        while self._under_way:
            self._collect()
        assert not self._written, "a bucket was written after its sum began"
        self._summed.clear()
        for bucket in self.buckets:
            self._leave(bucket)

    def in_flight(self) -> int:
        on_way = [len(bucket) for bucket, _, pending in self._under_way if not pending.is_done]
        return sum(on_way) * self.vector.itemsize


def _padding(bucket: Bucket) -> Iterator[slice]:
    """The parts of a bucket that are nobody's, counted from its start."""
    start = bucket.range.start
    edges = [start, *(edge for slot in bucket.slots for edge in (slot.range.start, slot.range.stop)), bucket.range.stop]
    for first, stop in list(pairwise(edges))[::2]:
        if first < stop:
            yield slice(first - start, stop - start)
