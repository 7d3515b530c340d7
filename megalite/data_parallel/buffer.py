"""Contiguous parameters and main grads, cut into buckets whose gradients are reduced over dp as backward proceeds.

    flat:    | bucket 0: head, final norm, last layers ...  | bucket 1 ...          | tied embedding |
    bucket:  | segment: decayed, split | segment: decayed, replicated | segment: not decayed ... |

Buckets follow the order in which backward finishes parameters (the reverse of the model's). Within a bucket the
parameters are sorted into segments that the optimizer and the norm treat alike, so that each handles a few long
vectors instead of hundreds of small ones. The layout depends on names and shapes only: all dp ranks share it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from megalite.comm.collectives import Pending
from megalite.gradient import MainGrad, attach, main_dtype
from megalite.mesh import Group, ParallelMesh
from megalite.shard import Shard, ShardSpec

Entry = tuple[str, nn.Parameter, ShardSpec]


@dataclass(frozen=True, kw_only=True, order=True)
class Kind:
    """What distinguishes one segment from another: whether its elements decay, are replicas, which sums they owe."""

    decayed: bool
    replicated: bool
    owes_tp: bool
    owes_ends: bool

    def counts(self, mesh: ParallelMesh) -> bool:
        """Whether this rank counts its elements, so that the ranks of a model count each logical element once."""
        return (mesh.tp.rank == 0 or not self.replicated) and (mesh.ends.rank == 0 or not self.owes_ends)


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

    def __init__(self, slots: list[Slot], *, stage: int, by_readiness: bool) -> None:
        self.range = slice(slots[0].range.start, slots[-1].range.stop)
        self.size = len(slots)
        self.stage = stage
        self.by_readiness = by_readiness
        """False for a tied weight: it is written twice in a backward, so only the flush knows that it is finished."""
        self.waiting = 0
        self.pending: Pending | None = None


class GradBuffer:
    """The parameters of the stages of one rank and their main grads.

    A step is: micro-batches whose backward writes main grads; `expect_last(stage)` before the final backward of a
    stage, from which on its buckets start to travel as they fill, where `overlap`; `flush(stage)` behind it, which
    closes the stage; `finish()`, which sends the rest and waits.
    """

    def __init__(
        self,
        stages: Mapping[int, Sequence[Entry]],
        *,
        decays: Callable[[str, ShardSpec], bool],
        tied: frozenset[str],
        dp: Group,
        bucket_size: int | None,
        overlap: bool,
        start_sum: Callable[[Tensor, Group], Pending],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.dp, self.overlap, self.start_sum = dp, overlap, start_sum
        plan = _plan(stages, decays=decays, tied=tied, bucket_size=bucket_size)
        self.slots = [slot for _, slots in plan for slot in slots]
        self.buckets = [Bucket(slots, stage=stage, by_readiness=slots[0].name not in tied) for stage, slots in plan]
        self.segments = [
            Segment(kind=key, range=slice(run[0].range.start, run[-1].range.stop))
            for _, slots in plan
            for key, run in ((key, list(group)) for key, group in groupby(slots, lambda slot: slot.kind))
        ]
        size = sum(slot.parameter.numel() for slot in self.slots)
        self.params = torch.empty(size, dtype=dtype, device=device)
        self.grads = torch.zeros(size, dtype=main_dtype(dtype), device=device)
        self._main_grads: dict[int, list[MainGrad]] = {stage: [] for stage in stages}
        self._armed: set[int] = set()
        self._closed: set[int] = set()
        self._next = 0
        for bucket, (_, slots) in zip(self.buckets, plan, strict=True):
            for slot in slots:
                self._adopt(slot, bucket)

    def _adopt(self, slot: Slot, bucket: Bucket) -> None:
        shape = slot.parameter.shape
        view = self.params[slot.range].view(shape)
        view.copy_(slot.parameter.data)
        slot.parameter.data = view
        main_grad = MainGrad(self.grads[slot.range].view(shape), lambda: self._ready(bucket))
        attach(slot.parameter, main_grad)
        self._main_grads[bucket.stage].append(main_grad)

    def shards(self) -> Iterator[Shard]:
        """The logical tensors of a checkpoint."""
        for slot in self.slots:
            yield slot.shard(slot.name, self.params)

    def expect_last(self, stage: int) -> None:
        """From here on, each write to a parameter of the stage is its last of this step."""
        if self.overlap:
            self._armed.add(stage)
            for bucket in self.buckets:
                bucket.waiting = bucket.size if bucket.stage == stage else bucket.waiting

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
            bucket.pending = self.start_sum(self.grads[bucket.range], self.dp)
            self._next += 1

    def finish(self) -> None:
        """Wait for all, once every stage is flushed: afterwards main grads hold the sum over dp."""
        assert self._next == len(self.buckets), "a stage was not flushed"
        for bucket in self.buckets:
            assert bucket.pending is not None
            bucket.pending.wait()
            bucket.pending = None
        self._armed, self._closed, self._next = set(), set(), 0


def _plan(
    stages: Mapping[int, Sequence[Entry]],
    *,
    decays: Callable[[str, ShardSpec], bool],
    tied: frozenset[str],
    bucket_size: int | None,
) -> list[tuple[int, list[Slot]]]:
    """The stage and the slots of each bucket: later stages first, as backward passes finish them, tied weights last."""
    buckets: list[tuple[int, list[Entry]]] = []
    for stage, entries in sorted(stages.items(), reverse=True):
        untied = [entry for entry in reversed(entries) if entry[0] not in tied]
        buckets += [(stage, bucket) for bucket in _cut(untied, bucket_size)]
    buckets += [(stage, [entry]) for stage, entries in stages.items() for entry in entries if entry[0] in tied]

    plan, offset = [], 0
    for stage, bucket in buckets:
        slots = []
        for name, parameter, spec in sorted(bucket, key=lambda entry: _kind(entry[0], entry[2], decays)):
            where = slice(offset, offset + parameter.numel())
            kind = _kind(name, spec, decays)
            slots.append(Slot(name=name, parameter=parameter, spec=spec, kind=kind, range=where))
            offset = where.stop
        plan.append((stage, slots))
    return plan


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


def _kind(name: str, spec: ShardSpec, decays: Callable[[str, ShardSpec], bool]) -> Kind:
    return Kind(
        decayed=decays(name, spec),
        replicated=spec.split_dim is None,
        owes_tp=spec.sum_grad_over_tp,
        owes_ends=spec.sum_grad_over_ends,
    )
