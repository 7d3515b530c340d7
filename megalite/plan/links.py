"""Seconds of collectives and messages over the links of a cluster."""

from math import log2

from megalite.plan.hardware import Cluster
from megalite.plan.rates import Rates


class Links:
    """What the links of a cluster carry at these rates."""

    def __init__(self, cluster: Cluster, rates: Rates) -> None:
        self.gpus_per_node = cluster.gpus_per_node
        self.intra = (cluster.device.intra or cluster.device.pcie) * rates.intra
        self.inter = cluster.device.network * rates.inter
        self.intra_wait, self.inter_wait = rates.intra_wait, rates.inter_wait

    def gather(self, nbytes: float, ranks: float, inner: float = 1) -> float:
        """An all-gather or a reduce-scatter of `nbytes` in all over `ranks` that are `inner` GPUs apart: within nodes
        first, and between them at the same time as the others of the node, each over its own share of the network.
        """
        if ranks <= 1 or not nbytes:
            return 0.0
        local = min(ranks, max(1.0, self.gpus_per_node / inner))
        nodes = ranks / local
        time = 0.0
        if local > 1:
            time += self.intra_wait + nbytes * (local - 1) / local / self.intra
        if nodes > 1:
            time += self.inter_wait * log2(nodes) + nbytes / local * (nodes - 1) / nodes / self.inter
        return time

    def reduce(self, nbytes: float, ranks: float, inner: float = 1) -> float:
        """An all-reduce: a reduce-scatter and an all-gather."""
        return 2 * self.gather(nbytes, ranks, inner)

    def message(self, nbytes: float, apart: float) -> float:
        """From one rank to the one that is `apart` GPUs further."""
        if apart < self.gpus_per_node:
            return self.intra_wait + nbytes / self.intra
        return self.inter_wait + nbytes / self.inter
