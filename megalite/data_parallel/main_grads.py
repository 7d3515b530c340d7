"""Where main grads are kept, and how they are summed over dp: all of them, each once a step."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from megalite.comm.collectives import Pending
from megalite.data_parallel.layout import BucketPlan, Piece, Segment, Slot
from megalite.data_parallel.policy import Policy


class Bucket:
    """A range of the flat buffer that travels in one collective."""

    def __init__(self, plan: BucketPlan, *, by_readiness: bool) -> None:
        self.range, self.stage, self.slots = plan.range, plan.stage, plan.slots
        self.by_readiness = by_readiness
        """False for a tied weight: it is written twice in a backward, so only the flush knows that it is finished."""
        self.waiting = 0
        """Writes until it is full."""
        self.gathering: Pending | None = None

    def __len__(self) -> int:
        return self.range.stop - self.range.start


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

    def place(self, slot: Slot, bucket: Bucket) -> Callable[[], Tensor]:
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
        """Wait for all sums of a step."""
        for bucket, pending in self._summing:
            pending.wait()
            self._leave(bucket)
        self._summing = []

    def _leave(self, bucket: Bucket) -> None:
        for copy in self.leaving:
            copy.take(bucket.range)

    def in_flight(self) -> int:
        """Bytes of gradients whose sums are on their way."""
        return sum(len(bucket) for bucket, pending in self._summing if not pending.is_done) * self.vector.itemsize
