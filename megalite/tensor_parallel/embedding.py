"""The vocabulary-parallel ends of the model: rows of the word embedding and of the head are split over tp."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megalite.gradient import WeightGrads, main_grad_of
from megalite.shard import Init, ShardSpec
from megalite.tensor_parallel.layout import TensorParallel, sum_over_tp
from megalite.tensor_parallel.linear import column_linear


class _Lookup(torch.autograd.Function):
    """forward    rows of the table
    backward   each row's gradient is added to its row of the main grad: nothing of the table's size is made
    """

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table = table  # not saved: it would come back as another object where hooks on saved tensors are in force
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        (ids,), table = ctx.saved_tensors, ctx.table
        main_grad_of(table).add_rows(ids.reshape(-1), grads[0].reshape(-1, table.shape[1]))
        return None, None


def lookup(ids: Tensor, table: Tensor) -> Tensor:
    """ids [...], table [n, h] -> [..., h]; the table's gradient goes to its main grad."""
    return _Lookup.apply(ids, table)


class VocabShard:
    """The rows of the vocabulary that one tp rank holds: equal parts of the padded size, the padding at the end."""

    def __init__(self, vocab_size: int, padded_size: int, layout: TensorParallel) -> None:
        self.rows = padded_size // layout.tp.size
        first = layout.tp.rank * self.rows
        self.start, self.stop = min(first, vocab_size), min(first + self.rows, vocab_size)
        self.vocab_size = vocab_size

    def parameter(self, hidden: int, *, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
        # Padding rows are no part of the logical tensor: nothing ever writes them, so they start, and stay, zero.
        return nn.Parameter(torch.zeros(self.rows, hidden, dtype=dtype, device=device))

    def spec(self, hidden: int, init: Init, *, sum_grad_over_ends: bool = False) -> ShardSpec:
        return ShardSpec(
            global_shape=(self.vocab_size, hidden),
            init=init,
            split_dim=0,
            split=(self.start, self.stop),
            sum_grad_over_ends=sum_grad_over_ends,
        )


class VocabParallelEmbedding(nn.Module):
    """tokens [s, b] -> [e, b, h]; each rank looks up the tokens it holds, and the layout's reduce adds them up.

    `at_both_ends`: the weight is one of two copies, on the first and on the last pipeline rank.
    """

    def __init__(
        self,
        shard: VocabShard,
        hidden: int,
        *,
        at_both_ends: bool,
        init: Init,
        layout: TensorParallel,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layout, self.shard = layout, shard
        self.weight = shard.parameter(hidden, dtype=dtype, device=device)
        self.shard_specs = {"weight": shard.spec(hidden, init, sum_grad_over_ends=at_both_ends)}

    def forward(self, tokens: Tensor) -> Tensor:
        if self.layout.tp.size == 1:
            return lookup(tokens, self.weight)
        elsewhere = (tokens < self.shard.start) | (tokens >= self.shard.stop)
        local = (tokens - self.shard.start).masked_fill(elsewhere, 0)
        return sum_over_tp(lookup(local, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0), self.layout)


class VocabParallelHead(nn.Module):
    """hidden [e, b, h] -> logits [s, b, padded vocabulary / tp]; tied where it is given the embedding's weight."""

    def __init__(
        self,
        shard: VocabShard,
        hidden: int,
        *,
        tied: nn.Parameter | None,
        init: Init,
        weight_grads: WeightGrads,
        layout: TensorParallel,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layout, self.shard, self.weight_grads = layout, shard, weight_grads
        if tied is None:
            self.weight = shard.parameter(hidden, dtype=dtype, device=device)
            self.shard_specs = {"weight": shard.spec(hidden, init)}
        else:
            self.weight = tied

    def forward(self, x: Tensor) -> Tensor:
        return column_linear(x, self.weight, None, self.layout, self.weight_grads)
