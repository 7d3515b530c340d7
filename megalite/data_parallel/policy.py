"""What dp ranks share of a bucket: who keeps which of its summed gradients, and so updates which of its parameters."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from megalite.arith.buckets import part_of
from megalite.comm.collectives import Pending, start_all_gather
from megalite.mesh import Group

StartSum = Callable[..., Pending]
"""Begins to sum x over a group: (x, group) in place, or (x, group, out) with this rank's part in `out`."""


class _Widened(Pending):
    """A sum that travelled in fewer bits than it is kept in."""

    def __init__(self, total: Tensor, narrow: Pending) -> None:
        super().__init__(total)
        self._narrow = narrow

    @property
    def is_done(self) -> bool:
        return self._narrow.is_done

    def wait(self) -> Tensor:
        return self._tensor.copy_(self._narrow.wait())


def rounded(start: StartSum, dtype: torch.dtype) -> StartSum:
    """Let what `start` sums travel in `dtype`, in which it is added up as well; one rank alone rounds nothing."""

    def start_rounded(x: Tensor, group: Group, *out: Tensor) -> Pending:
        if group.size == 1:
            return Pending(x)
        narrow = [torch.empty_like(part, dtype=dtype) for part in out]
        return _Widened((*out, x)[0], start(x.to(dtype), group, *narrow))

    return start_rounded


class Policy(Protocol):
    """What a buffer asks."""

    shards: int
    """Parts into which a bucket is cut."""

    def own(self, bucket: slice) -> slice:
        """What this rank keeps of a bucket, as a range of the flat buffer."""
        ...

    def start_sum(self, grads: Tensor) -> Pending:
        """Begin to sum the gradients of a bucket; afterwards what is owned of them holds the sum."""
        ...

    def start_join(self, owned: Tensor) -> Pending:
        """Begin to sum what is owned of a bucket's sums over the ranks that own the same, where there are several."""
        ...

    def start_gather(self, params: Tensor) -> Pending:
        """Begin to give every rank the parameters of a bucket, of which each has updated what it owns."""
        ...


class Replicated:
    """Every rank keeps all: gradients are summed in place, and every rank makes every update."""

    shards = 1

    def __init__(self, dp: Group, start_sum: StartSum) -> None:
        self.dp, self._start_sum = dp, start_sum

    def own(self, bucket: slice) -> slice:
        return bucket

    def start_sum(self, grads: Tensor) -> Pending:
        return self._start_sum(grads, self.dp)

    def start_join(self, owned: Tensor) -> Pending:
        return Pending(owned)

    def start_gather(self, params: Tensor) -> Pending:
        return Pending(params)


class Sharded:
    """Each rank keeps its part of every bucket (Rajbhandari et al. 2020, ZeRO, stage 1): reduce-scatter of gradients,
    all-gather of parameters, and the state of the optimizer for a part only.

    There may be several instances of the optimizer, each shared out over the ranks of a `shards`. What a rank owns is
    then summed over `instances` as well: less travels far, for more memory.
    """

    def __init__(
        self, shards: Group, instances: Group, *, start_reduce_scatter: StartSum, start_all_reduce: StartSum
    ) -> None:
        self._shards, self._instances = shards, instances
        self._start_reduce_scatter, self._start_all_reduce = start_reduce_scatter, start_all_reduce
        self.shards = shards.size

    def own(self, bucket: slice) -> slice:
        return part_of(bucket, self._shards.rank, self.shards)

    def start_sum(self, grads: Tensor) -> Pending:
        return self._start_reduce_scatter(grads, self._shards, grads[self.own(slice(0, len(grads)))])

    def start_join(self, owned: Tensor) -> Pending:
        return self._start_all_reduce(owned, self._instances)

    def start_gather(self, params: Tensor) -> Pending:
        return start_all_gather(params[self.own(slice(0, len(params)))], self._shards, params)
