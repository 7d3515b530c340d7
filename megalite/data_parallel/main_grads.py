"""Where main grads are kept, and how they are summed over dp: all of them, each once a step."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from megalite.arith.buckets import length
from megalite.comm.collectives import Pending
from megalite.data_parallel.layout import BucketPlan, Piece, Segment, Slot
from megalite.data_parallel.policy import Policy


class Bucket:
    """A range of the flat buffer that travels in one collective."""

    def __init__(self, plan: BucketPlan) -> None:
        self.range, self.stage, self.slots = plan.range, plan.placed.stage, plan.slots
        self.by_readiness = not plan.placed.tied
        """False for a tied weight: it is written twice in a backward, so only the flush knows that it is finished."""
        self.waiting = 0
        """Writes until it is full."""
        self.gathering: Pending | None = None

    def __len__(self) -> int:
        return length(self.range)


class Leaving(Protocol):
    """A copy of owned main grads elsewhere, which is made bucket by bucket."""

    def take(self, bucket: slice) -> None:
        """The sums of a bucket are there."""
        ...

    def scale(self, factor: float) -> None:
        """Multiply what was taken, as the main grads are."""
        ...


class MainGrads:
    """A vector as long as the parameters; `overlap`: a bucket may travel while others are written."""

    sums_each = False
    """Whether the gradients of every micro-batch are summed over dp, or those of a step at once."""

    def __init__(
        self, buckets: Sequence[Bucket], policy: Policy, *, overlap: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.buckets, self.policy, self.overlap = buckets, policy, overlap
        self.vector = torch.zeros(self._elements(), dtype=dtype, device=device)
        """What is kept from step to step."""
        self.leaving: list[Leaving] = []
        self._summing: list[tuple[Bucket, Pending]] = []

    def _elements(self) -> int:
        return sum(map(len, self.buckets))

    @property
    def leave_when_full(self) -> bool:
        """Whether a bucket is to be sent as soon as it is full, or else when its stage is closed."""
        return self.overlap

    @property
    def lent(self) -> int:
        """Bytes of memory that gradients have besides until they are summed."""
        return 0

    def view(self, slot: Slot, bucket: Bucket) -> Callable[[], Tensor]:
        """Where a parameter's gradient is written."""
        view = self.vector[slot.range].view(slot.parameter.shape)
        return lambda: view

    def of(self, owned: Segment | Piece) -> Tensor:
        """The main grads of something that this rank owns: after `finish`, summed over dp."""
        return self.vector[owned.range]

    def send(self, bucket: Bucket) -> None:
        """Begin to sum a bucket that is written. All dp ranks must send the same buckets in the same order."""
        self._summing.append((bucket, self.policy.start_sum(self.vector[bucket.range])))

    def finish(self) -> None:
        """Wait for all sums of a step, over the ranks that share the optimizer and then over its instances."""
        joining: deque[tuple[Bucket, Pending]] = deque()
        for bucket in self._in_turn():
            joining.append((bucket, self.policy.start_join(self.vector[self._kept(bucket)])))
            while joining and joining[0][1].is_done:
                self._leave(*joining.popleft())
        for bucket, pending in joining:
            self._leave(bucket, pending)

    def _in_turn(self) -> Iterator[Bucket]:
        """Each bucket, once its sum is in."""
        for bucket, pending in self._summing:
            pending.wait()
            yield bucket
        self._summing = []

    def _kept(self, bucket: Bucket) -> slice:
        """Where the vector has what is owned of a bucket."""
        return self.policy.own(bucket.range)

    def _leave(self, bucket: Bucket, pending: Pending) -> None:
        pending.wait()
        for copy in self.leaving:
            copy.take(bucket.range)

    def in_flight(self) -> int:
        """Bytes of gradients whose sums are on their way."""
        return sum(len(bucket) for bucket, pending in self._summing if not pending.is_done) * self.vector.itemsize
