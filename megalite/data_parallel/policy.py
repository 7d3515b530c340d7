"""What dp ranks share of a bucket: who keeps which of its summed gradients, and so updates which of its parameters."""

from collections.abc import Callable

from torch import Tensor

from megalite.comm.collectives import Pending, start_all_gather
from megalite.mesh import Group


class Replicated:
    """Every rank keeps all: gradients are summed in place, and every rank makes every update."""

    shards = 1

    def __init__(self, dp: Group, start_sum: Callable[[Tensor, Group], Pending]) -> None:
        self.dp, self._start_sum = dp, start_sum

    def own(self, bucket: slice) -> slice:
        """What this rank keeps of a bucket, as a range of the flat buffer."""
        return bucket

    def start_sum(self, grads: Tensor) -> Pending:
        """Begin to sum the gradients of a bucket; afterwards what is owned of them holds the sum."""
        return self._start_sum(grads, self.dp)

    def start_gather(self, params: Tensor) -> Pending:
        """Begin to give every rank the parameters of a bucket, of which each has updated what it owns."""
        return Pending(params)


class Sharded(Replicated):
    """Each rank keeps its part of every bucket (Rajbhandari et al. 2020, ZeRO, stage 1): reduce-scatter of gradients,
    all-gather of parameters, and the state of the optimizer for a part only."""

    def __init__(self, dp: Group, start_reduce_scatter: Callable[[Tensor, Group, Tensor], Pending]) -> None:
        self.dp, self._start_reduce_scatter = dp, start_reduce_scatter
        self.shards = dp.size

    def own(self, bucket: slice) -> slice:
        part = (bucket.stop - bucket.start) // self.shards
        return slice(bucket.start + self.dp.rank * part, bucket.start + (self.dp.rank + 1) * part)

    def start_sum(self, grads: Tensor) -> Pending:
        return self._start_reduce_scatter(grads, self.dp, grads[self.own(slice(0, len(grads)))])

    def start_gather(self, params: Tensor) -> Pending:
        return start_all_gather(params[self.own(slice(0, len(params)))], self.dp, params)
