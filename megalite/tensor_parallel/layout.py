"""Layouts: how activations lie between the tensor-parallel regions, and the collectives at their borders.

A layout has two verbs, and each is the other's gradient:

    gather: what enters a tensor-parallel region       backward of reduce
    reduce: what leaves it as partial sums             backward of gather

Layers receive a layout and never ask which one it is.
"""

from typing import Any

import torch
from torch import Tensor

from megalite.comm.collectives import Pending, start_all_gather, start_all_reduce, start_reduce_scatter
from megalite.mesh import Group


class TensorParallel:
    """Every tp rank holds the whole sequence [s, b, h] between regions.

    gather: the identity.
    reduce: all-reduce.
    """

    shards_sequence = False

    def __init__(self, tp: Group) -> None:
        self.tp = tp

    def gather(self, x: Tensor) -> Pending:
        return Pending(x)

    def reduce(self, x: Tensor) -> Pending:
        """May sum into x itself."""
        return start_all_reduce(x, self.tp)

    def rows(self, sequence: int) -> slice:
        """The positions of a sequence that this rank holds between regions."""
        return slice(0, sequence)


class SequenceParallel(TensorParallel):
    """Each tp rank holds its part of the sequence [s / tp, b, h] between regions (Korthikanti et al. 2022, 4.2.2).

    gather: all-gather along the sequence.
    reduce: reduce-scatter along the sequence.
    """

    shards_sequence = True

    def gather(self, x: Tensor) -> Pending:
        return start_all_gather(x, self.tp)

    def reduce(self, x: Tensor) -> Pending:
        return start_reduce_scatter(x, self.tp)

    def rows(self, sequence: int) -> slice:
        part = sequence // self.tp.size
        return slice(self.tp.rank * part, (self.tp.rank + 1) * part)


class _SumOverTp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: TensorParallel) -> Tensor:
        ctx.layout = layout
        total = layout.reduce(x).wait()
        if total is x:
            ctx.mark_dirty(x)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.gather(grads[0]).wait(), None


def sum_over_tp(x: Tensor, layout: TensorParallel) -> Tensor:
    """`layout.reduce` for autograd: leave a tensor-parallel region with partial sums x, which may be overwritten."""
    return _SumOverTp.apply(x, layout)
