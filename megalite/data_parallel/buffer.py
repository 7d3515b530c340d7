"""Contiguous parameters and main grads, cut into buckets whose gradients are reduced over dp as backward proceeds.

    flat:    | bucket 0: head, final norm, last layers ...  | bucket 1 ...          | tied embedding |
    bucket:  | segment: decayed, split | segment: decayed, replicated | segment: not decayed ... |

Buckets follow the order in which backward finishes parameters (the reverse of the model's). Within a bucket the
parameters are sorted into segments that the optimizer and the norm treat alike, so that each handles a few long
vectors instead of hundreds of small ones. The layout depends on names and shapes only: all dp ranks share it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from megalite.comm.collectives import Pending
from megalite.gradient import MainGrad, attach, main_dtype
from megalite.mesh import Group
from megalite.shard import Shard, ShardSpec


@dataclass(frozen=True, kw_only=True, order=True)
class Kind:
    """What distinguishes one segment from another: whether its elements decay, are replicas, owe a sum over tp."""

    decayed: bool
    replicated: bool
    owes_tp: bool


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A range of the flat buffer whose elements are treated alike."""

    kind: Kind
    range: slice


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One parameter and its range of the flat buffer."""

    name: str
    parameter: nn.Parameter
    spec: ShardSpec
    kind: Kind
    range: slice

    def shard(self, name: str, flat: Tensor) -> Shard:
        """The box of this parameter in a flat tensor laid out like the buffer."""
        return Shard.of(name, self.spec, flat[self.range])


class Bucket:
    """A range of the flat buffer that is reduced in one collective, once all its parameters are ready."""

    def __init__(self, slots: list[Slot], *, by_readiness: bool) -> None:
        self.range = slice(slots[0].range.start, slots[-1].range.stop)
        self.size = len(slots)
        self.by_readiness = by_readiness
        """False for a tied weight: it is written twice in a backward, so only the flush knows that it is finished."""
        self.waiting = 0
        self.pending: Pending | None = None


class GradBuffer:
    """The parameters of the chunks of one rank and their main grads.

    A step is: micro-batches whose backward writes main grads; `expect_last()` before the final backward, from which on
    buckets start to travel in index order as they fill, where `overlap`; `finish()` which sends the rest and waits.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter, ShardSpec]],
        *,
        decays: Callable[[str, ShardSpec], bool],
        tied: frozenset[str],
        dp: Group,
        bucket_size: int | None,
        overlap: bool,
        start_sum: Callable[[Tensor, Group], Pending],
    ) -> None:
        self.dp, self.overlap, self.start_sum = dp, overlap, start_sum
        plan = _plan(list(parameters), decays=decays, tied=tied, bucket_size=bucket_size)
        self.slots = [slot for slots in plan for slot in slots]
        self.buckets = [Bucket(slots, by_readiness=slots[0].name not in tied) for slots in plan]
        self.segments = [
            Segment(kind=key, range=slice(run[0].range.start, run[-1].range.stop))
            for slots in plan
            for key, run in ((key, list(group)) for key, group in groupby(slots, lambda slot: slot.kind))
        ]
        first, size = self.slots[0].parameter, self.slots[-1].range.stop
        self.params = torch.empty(size, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros(size, dtype=main_dtype(first.dtype), device=first.device)
        self._main_grads: list[MainGrad] = []
        self._armed, self._next = False, 0
        for bucket, slots in zip(self.buckets, plan, strict=True):
            for slot in slots:
                self._adopt(slot, bucket)

    def _adopt(self, slot: Slot, bucket: Bucket) -> None:
        shape = slot.parameter.shape
        view = self.params[slot.range].view(shape)
        view.copy_(slot.parameter.data)
        slot.parameter.data = view
        main_grad = MainGrad(self.grads[slot.range].view(shape), lambda: self._ready(bucket))
        attach(slot.parameter, main_grad)
        self._main_grads.append(main_grad)

    def shards(self) -> Iterator[Shard]:
        """The logical tensors of a checkpoint."""
        for slot in self.slots:
            yield slot.shard(slot.name, self.params)

    def expect_last(self) -> None:
        """From here on, each write is its parameter's last of this step."""
        self._armed = self.overlap
        for bucket in self.buckets:
            bucket.waiting = bucket.size

    def _ready(self, bucket: Bucket) -> None:
        if not self._armed:
            return
        bucket.waiting -= 1
        while self._next < len(self.buckets) and self._full(self.buckets[self._next]):
            self._launch()

    def _full(self, bucket: Bucket) -> bool:
        return bucket.by_readiness and bucket.waiting == 0

    def _launch(self) -> None:
        """Send the next bucket. Never out of turn: all dp ranks must start the same collectives in the same order."""
        bucket = self.buckets[self._next]
        bucket.pending = self.start_sum(self.grads[bucket.range], self.dp)
        self._next += 1

    def finish(self) -> None:
        """Send what has not been sent and wait for all: afterwards main grads hold the sum over dp."""
        for main_grad in self._main_grads:
            main_grad.close()
        while self._next < len(self.buckets):
            self._launch()
        for bucket in self.buckets:
            assert bucket.pending is not None
            bucket.pending.wait()
            bucket.pending = None
        self._armed, self._next = False, 0


def _plan(
    parameters: list[tuple[str, nn.Parameter, ShardSpec]],
    *,
    decays: Callable[[str, ShardSpec], bool],
    tied: frozenset[str],
    bucket_size: int | None,
) -> list[list[Slot]]:
    """The slots of each bucket. A bucket closes once it holds at least `bucket_size` elements; None is one bucket."""
    buckets: list[list[tuple[str, nn.Parameter, ShardSpec]]] = [[]]
    held = 0
    for entry in reversed([entry for entry in parameters if entry[0] not in tied]):
        if bucket_size is not None and held >= bucket_size:
            buckets.append([])
            held = 0
        buckets[-1].append(entry)
        held += entry[1].numel()
    buckets += [[entry] for entry in parameters if entry[0] in tied]

    plan, offset = [], 0
    for bucket in buckets:
        slots = []
        for name, parameter, spec in sorted(bucket, key=lambda entry: _kind(entry[0], entry[2], decays)):
            where = slice(offset, offset + parameter.numel())
            kind = _kind(name, spec, decays)
            slots.append(Slot(name=name, parameter=parameter, spec=spec, kind=kind, range=where))
            offset = where.stop
        plan.append(slots)
    return plan


def _kind(name: str, spec: ShardSpec, decays: Callable[[str, ShardSpec], bool]) -> Kind:
    return Kind(decayed=decays(name, spec), replicated=spec.split_dim is None, owes_tp=spec.sum_grad_over_tp)
