"""The collectives, each over one group. The only caller of torch.distributed besides the mesh.

A group of size 1 needs no communication: every function returns its input. Calls and bytes are counted per group.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megalite.mesh import Group

# torch 2.13 renamed both; the old names still exist, and are all that 2.11 has.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class PeerLost(ConnectionError):
    """Another rank of the group ended, or kept this one waiting for too long. Its own error is the cause."""


@contextmanager
def among(group: Group) -> Iterator[None]:
    """Say of a failure which ranks it happened among."""
    try:
        yield
    except RuntimeError as error:
        words = f"a communication of group {group.name}, ranks {list(group.ranks)}, failed"
        raise PeerLost(f"{words}: {error}") from error


class Pending:
    """A tensor that a collective over `group` may still be writing; `wait()` returns it finished."""

    def __init__(self, tensor: Tensor, work: dist.Work | None = None, group: Group | None = None) -> None:
        self._tensor, self._work, self._group = tensor, work, group

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._work is None or self._work.is_completed()

    def wait(self) -> Tensor:
        if self._work is not None and self._group is not None:
            with among(self._group):
                self._work.wait()
            self._work = None
        return self._tensor


def start_all_reduce(x: Tensor, group: Group, op: str = "sum") -> Pending:
    """Begin to combine x over the group, in place."""
    if group.size == 1:
        return Pending(x)
    group.traffic.add("all_reduce", x.numel() * x.element_size())
    with among(group):
        return Pending(x, dist.all_reduce(x, _OPS[op], group=group.handle, async_op=True), group)


class _OrderedSum(Pending):
    """A sum, in the order of ranks, of what they gather: of all of it, or of one rank's part."""

    def __init__(self, total: Tensor, gathered: Pending, *, ranks: int, part: slice) -> None:
        super().__init__(total)
        self._gathered, self._ranks, self._part = gathered, ranks, part

    @property
    def is_done(self) -> bool:
        return self._gathered.is_done

    def wait(self) -> Tensor:
        first, *others = (whole[self._part] for whole in self._gathered.wait().chunk(self._ranks))
        self._tensor.copy_(first)
        for part in others:
            self._tensor.add_(part)
        return self._tensor


def start_ordered_sum(x: Tensor, group: Group) -> Pending:
    """Begin to sum x [n] over the group, in place. Ranks are added in order, so that the sum of an element does not
    depend on what travels with it; the price is the memory, and the traffic, of an all-gather."""
    if group.size == 1:
        return Pending(x)
    return _OrderedSum(x, start_all_gather(x, group), ranks=group.size, part=slice(None))


def start_ordered_reduce_scatter(x: Tensor, group: Group, out: Tensor) -> Pending:
    """`start_reduce_scatter` of x [size * n] into out [n], in the order of ranks and at the price of an all-gather."""
    if group.size == 1:
        return Pending(x)
    part = slice(group.rank * len(out), (group.rank + 1) * len(out))
    return _OrderedSum(out, start_all_gather(x, group), ranks=group.size, part=part)


def start_all_gather(x: Tensor, group: Group, out: Tensor | None = None) -> Pending:
    """Begin to concatenate the ranks' x along dim 0: [n, ...] -> [size * n, ...], of which x may be a part."""
    if group.size == 1:
        return Pending(x)
    if out is None:
        out = x.new_empty(group.size * x.shape[0], *x.shape[1:])
    group.traffic.add("all_gather", out.numel() * out.element_size())
    with among(group):
        return Pending(out, _all_gather(out, x.contiguous(), group=group.handle, async_op=True), group)


def start_reduce_scatter(x: Tensor, group: Group, out: Tensor | None = None) -> Pending:
    """Begin to sum x over the group and keep this rank's part of dim 0: [size * n, ...] -> [n, ...].

    `out` may be that part of x.
    """
    if group.size == 1:
        return Pending(x)
    if out is None:
        out = x.new_empty(x.shape[0] // group.size, *x.shape[1:])
    group.traffic.add("reduce_scatter", x.numel() * x.element_size())
    with among(group):
        return Pending(out, _reduce_scatter(out, x.contiguous(), group=group.handle, async_op=True), group)


def all_reduce(x: Tensor, group: Group, op: str = "sum") -> Tensor:
    """Combine x over the group, in place."""
    return start_all_reduce(x, group, op).wait()


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Concatenate the ranks' x along dim 0: [n, ...] -> [size * n, ...]."""
    return start_all_gather(x, group).wait()


def all_gather_object(value: Any, group: Group) -> list[Any]:
    """Every rank's value, in the order of the group. For small facts outside the training step."""
    if group.size == 1:
        return [value]
    values: list[Any] = [None] * group.size
    with among(group):
        dist.all_gather_object(values, value, group=group.handle)
    return values


def all_equal(x: Tensor, group: Group) -> bool:
    """Whether x holds the same numbers on every rank."""
    high, low = x.clone(), x.clone()
    return bool(torch.equal(all_reduce(high, group, "max"), all_reduce(low, group, "min")))
