"""The vocabulary-parallel ends of the model: rows of the word embedding and of the head are split over tp."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megalite.shard import Init, ShardSpec
from megalite.tensor_parallel.layout import TensorParallel, reduce
from megalite.tensor_parallel.linear import column_linear


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

    def spec(self, hidden: int, init: Init) -> ShardSpec:
        shape = (self.vocab_size, hidden)
        return ShardSpec(global_shape=shape, init=init, split_dim=0, split=(self.start, self.stop))


class VocabParallelEmbedding(nn.Module):
    """tokens [s, b] -> [e, b, h]; each rank looks up the tokens it holds, and the layout's reduce adds them up."""

    def __init__(
        self,
        shard: VocabShard,
        hidden: int,
        *,
        init: Init,
        layout: TensorParallel,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layout, self.shard = layout, shard
        self.weight = shard.parameter(hidden, dtype=dtype, device=device)
        self.shard_specs = {"weight": shard.spec(hidden, init)}

    def forward(self, tokens: Tensor) -> Tensor:
        if self.layout.tp.size == 1:
            return F.embedding(tokens, self.weight)
        elsewhere = (tokens < self.shard.start) | (tokens >= self.shard.stop)
        local = (tokens - self.shard.start).masked_fill(elsewhere, 0)
        return reduce(F.embedding(local, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0), self.layout)


class VocabParallelHead(nn.Module):
    """hidden [e, b, h] -> logits [s, b, padded vocabulary / tp]; tied where it is given the embedding's weight."""

    def __init__(
        self,
        shard: VocabShard,
        hidden: int,
        *,
        tied: nn.Parameter | None,
        init: Init,
        layout: TensorParallel,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layout, self.shard = layout, shard
        if tied is None:
            self.weight = shard.parameter(hidden, dtype=dtype, device=device)
            self.shard_specs = {"weight": shard.spec(hidden, init)}
        else:
            self.weight = tied

    def forward(self, x: Tensor) -> Tensor:
        return column_linear(x, self.weight, None, self.layout)
