"""Contiguous parameters and main grads, in buckets whose gradients are summed over dp as backward proceeds."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from megalite.comm.collectives import Pending
from megalite.data_parallel import layout
from megalite.data_parallel.layout import BucketPlan, Entry, Slot, Treat
from megalite.data_parallel.policy import Policy
from megalite.gradient import MainGrad, attach, main_dtype, main_grad_of
from megalite.shard import Shard


class Bucket:
    """A range of the flat buffer that travels in one collective."""

    def __init__(self, plan: BucketPlan, *, by_readiness: bool) -> None:
        self.range, self.stage = plan.range, plan.stage
        self.parameters = [slot.parameter for slot in plan.slots]
        self.by_readiness = by_readiness
        """False for a tied weight: it is written twice in a backward, so only the flush knows that it is finished."""
        self.waiting = 0
        self.summing: Pending | None = None
        self.gathering: Pending | None = None


class Leaving(Protocol):
    """A copy of owned main grads elsewhere, which is made bucket by bucket."""

    def take(self, bucket: slice) -> None:
        """The sums of a bucket are there."""
        ...

    def scale(self, factor: float) -> None:
        """Multiply what was taken, as the main grads are."""
        ...


class GradBuffer:
    """The parameters of the stages of one rank and their main grads; `policy` says what this rank owns of them.

    A step is: micro-batches whose backward writes main grads; `expect_last(stage)` before the final backward of a
    stage, from which on its buckets start to travel as they fill, where `overlap`; `flush(stage)` behind it, which
    closes the stage; `finish()`, which waits. Afterwards what is owned of the main grads holds the sum over dp. When
    what is owned of the parameters was updated, `gather_params()` brings the rest.
    """

    def __init__(
        self,
        stages: Mapping[int, Sequence[Entry]],
        *,
        treat: Treat,
        tied: frozenset[str],
        bucket_size: int | None,
        policy: Policy,
        overlap: bool,
        overlap_gather: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.policy, self.overlap, self.overlap_gather = policy, overlap, overlap_gather
        plan = layout.plan(stages, treat=treat, tied=tied, bucket_size=bucket_size, multiple_of=policy.shards)
        self.slots = [slot for bucket in plan for slot in bucket.slots]
        self.buckets = [Bucket(bucket, by_readiness=bucket.slots[0].name not in tied) for bucket in plan]
        self.owned = layout.segments(plan, policy.own)
        self.pieces = list(layout.pieces(plan, policy.own))
        size = plan[-1].range.stop if plan else 0
        self.params = torch.zeros(size, dtype=dtype, device=device)
        self.grads = torch.zeros(size, dtype=main_dtype(dtype), device=device)
        self.leaving: list[Leaving] = []
        self._main_grads: dict[int, list[MainGrad]] = {stage: [] for stage in stages}
        self._bucket_of: dict[int, Bucket] = {}
        self._armed: set[int] = set()
        self._closed: set[int] = set()
        self._next = 0
        for bucket, planned in zip(self.buckets, plan, strict=True):
            for slot in planned.slots:
                self._adopt(slot, bucket)

    def _adopt(self, slot: Slot, bucket: Bucket) -> None:
        shape = slot.parameter.shape
        view = self.params[slot.range].view(shape)
        view.copy_(slot.parameter.data)
        slot.parameter.data = view
        main_grad = MainGrad(self.grads[slot.range].view(shape), lambda: self._ready(bucket))
        attach(slot.parameter, main_grad)
        self._main_grads[bucket.stage].append(main_grad)
        self._bucket_of[id(slot.parameter)] = bucket

    def shards(self) -> Iterator[Shard]:
        """The logical tensors of a checkpoint."""
        self.wait_params()
        for slot in self.slots:
            yield Shard.of(slot.name, slot.spec, self.params[slot.range])

    def expect_last(self, stage: int, still: Collection[Tensor] | None = None) -> None:
        """From here on, each write to a parameter of the stage is its last of this step; of some, where `still` names
        those that will be written, it has been."""
        if not self.overlap:
            return
        self._armed.add(stage)
        names = None if still is None else {id(parameter) for parameter in still}
        for bucket in (bucket for bucket in self.buckets if bucket.stage == stage):
            bucket.waiting = sum(names is None or id(p) in names or main_grad_of(p).fresh for p in bucket.parameters)
        self._launch()

    def _ready(self, bucket: Bucket) -> None:
        if bucket.stage in self._armed:
            bucket.waiting -= 1
            self._launch()

    def flush(self, stage: int) -> None:
        """Nothing more is written to the stage's parameters in this step; one without a write has gradient zero."""
        for main_grad in self._main_grads[stage]:
            main_grad.close()
        self._closed.add(stage)
        self._launch()

    def _full(self, bucket: Bucket) -> bool:
        filled = bucket.stage in self._armed and bucket.by_readiness and bucket.waiting == 0
        return filled or bucket.stage in self._closed

    def _launch(self) -> None:
        """Send the buckets whose turn it is. All dp ranks must start the same collectives in the same order."""
        while self._next < len(self.buckets) and self._full(bucket := self.buckets[self._next]):
            bucket.summing = self.policy.start_sum(self.grads[bucket.range])
            self._next += 1

    def finish(self) -> None:
        """Wait for all sums, once every stage is flushed."""
        assert self._next == len(self.buckets), "a stage was not flushed"
        for bucket in self.buckets:
            assert bucket.summing is not None
            bucket.summing.wait()
            bucket.summing = None
            for copy in self.leaving:
                copy.take(bucket.range)
        self._armed, self._closed, self._next = set(), set(), 0

    def in_flight(self) -> int:
        """Bytes of the main grads whose sums are on their way."""
        on_way = [b.range for b in self.buckets if b.summing is not None and not b.summing.is_done]
        return sum(bucket.stop - bucket.start for bucket in on_way) * self.grads.itemsize

    def scale_grads(self, factor: float) -> None:
        """Multiply what is owned of the main grads, and the copies of it that have left."""
        for segment in self.owned:
            self.grads[segment.range].mul_(factor)
        for copy in self.leaving:
            copy.scale(factor)

    def gather_params(self) -> None:
        """Give every rank all parameters: at once, or, where `overlap_gather`, by the time that they are needed."""
        for bucket in reversed(self.buckets):  # the first to be needed is the last to be reduced
            bucket.gathering = self.policy.start_gather(self.params[bucket.range])
        if not self.overlap_gather:
            self.wait_params()

    def wait_params(self) -> None:
        """Wait until all parameters are there."""
        _wait_for_all(self.buckets)

    def wait_in_forward(self, module: nn.Module) -> None:
        """Let each part of the module wait for its own parameters when its forward begins."""
        for part in module.modules():
            needed = {self._bucket_of[id(parameter)] for parameter in part.parameters(recurse=False)}
            if needed:
                part.register_forward_pre_hook(partial(_wait_for_all, needed))


def _wait_for_all(buckets: Iterable[Bucket], *forward: object) -> None:
    for bucket in buckets:
        if bucket.gathering is not None:
            bucket.gathering.wait()
            bucket.gathering = None
