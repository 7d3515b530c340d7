"""Contiguous parameters and main grads, in buckets whose gradients are summed over dp as backward proceeds."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from megalite.data_parallel import layout
from megalite.data_parallel.layout import Entry, Slot, Treat
from megalite.data_parallel.main_grads import Bucket, MainGrads
from megalite.data_parallel.policy import Policy
from megalite.gradient import MainGrad, attach, main_dtype, main_grad_of
from megalite.shard import Shard


class GradBuffer:
    """The parameters of the stages of one rank and their main grads; `policy` says what this rank owns of them, `keep`
    what it keeps of main grads.

    A step is: micro-batches whose backward writes main grads; `expect_last(stage)` before the final backward of a
    stage, from which on its buckets may travel as they fill; `flush(stage)` behind it, which closes the stage; and
    `finish()`, which waits. Where `keep` sums every micro-batch, each backward is a final one, and between two of a
    stage all are closed. Afterwards what is owned of the main grads holds the sum over dp. When what is owned of the
    parameters was updated, `gather_params()` brings the rest.
    """

    def __init__(
        self,
        stages: Mapping[int, Sequence[Entry]],
        *,
        treat: Treat,
        tied: frozenset[str],
        bucket_size: int | None,
        policy: Policy,
        keep: type[MainGrads],
        overlap: bool,
        overlap_gather: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.policy, self.overlap_gather = policy, overlap_gather
        plan = layout.plan(stages, treat=treat, tied=tied, bucket_size=bucket_size, shards=policy.shards)
        self.slots = [slot for bucket in plan for slot in bucket.slots]
        self.buckets = [Bucket(bucket) for bucket in plan]
        self.owned = layout.segments(plan, policy.own)
        self.pieces = list(layout.pieces(plan, self.owned))
        size = plan[-1].range.stop if plan else 0
        self.params = torch.zeros(size, dtype=dtype, device=device)
        self.grads = keep(self.buckets, policy, overlap=overlap, dtype=main_dtype(dtype), device=device)
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
        main_grad = MainGrad(self.grads.view(slot, bucket), lambda: self._ready(bucket))
        attach(slot.parameter, main_grad)
        self._main_grads[bucket.stage].append(main_grad)
        self._bucket_of[id(slot.parameter)] = bucket

    def shards(self) -> Iterator[Shard]:
        """The logical tensors of a checkpoint."""
        self.wait_params()
        for slot in self.slots:
            yield Shard.of(slot.name, slot.spec, self.params[slot.range])

    def expect_last(self, stage: int, still: Collection[Tensor] | None = None) -> None:
        """From here on, each write to a parameter of the stage is its last before the flush; of some, where `still`
        names those that will be written, it has been."""
        if not self.grads.leave_when_full:
            return
        self._armed.add(stage)
        coming = {id(parameter) for parameter in still or ()}
        for bucket in (bucket for bucket in self.buckets if bucket.stage == stage):
            parameters = [slot.parameter for slot in bucket.slots]
            bucket.waiting = sum(still is None or id(p) in coming or main_grad_of(p).fresh for p in parameters)
        self._launch()

    def _ready(self, bucket: Bucket) -> None:
        if bucket.stage in self._armed:
            bucket.waiting -= 1
            self._launch()

    def flush(self, stage: int) -> None:
        """Nothing more is written to the stage's parameters before the sums; one without a write has gradient zero."""
        for main_grad in self._main_grads[stage]:
            main_grad.close()
        self._closed.add(stage)
        self._launch()
        if len(self._closed) == len(self._main_grads):
            self._armed, self._closed, self._next = set(), set(), 0

    def _full(self, bucket: Bucket) -> bool:
        filled = bucket.stage in self._armed and bucket.by_readiness and bucket.waiting == 0
        return filled or bucket.stage in self._closed

    def _launch(self) -> None:
        """Send the buckets whose turn it is. All dp ranks must start the same collectives in the same order."""
        while self._next < len(self.buckets) and self._full(bucket := self.buckets[self._next]):
            self.grads.send(bucket)
            self._next += 1

    def finish(self) -> None:
        """Wait for all sums, once every stage is flushed."""
        assert not self._closed and not self._armed, "a stage was not flushed"
        self.grads.finish()

    def scale_grads(self, factor: float) -> None:
        """Multiply what is owned of the main grads, and the copies of it that have left."""
        for copy in self.grads.leaving:  # first: it waits for what is still being copied
            copy.scale(factor)
        for segment in self.owned:
            self.grads.of(segment).mul_(factor)

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
