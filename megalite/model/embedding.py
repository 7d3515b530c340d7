"""Tokens to hidden activations."""

import torch
from torch import Tensor, nn

from megalite.model.context import Context
from megalite.model.dropout import HiddenDropout
from megalite.shard import Init, replicated
from megalite.tensor_parallel.embedding import VocabParallelEmbedding, lookup
from megalite.tensor_parallel.layout import TensorParallel


class LearnedPositions(nn.Module):
    """A learned vector for each position. position_ids [b, s] -> [e, b, h]: only the rows this rank holds."""

    def __init__(
        self,
        positions: int,
        hidden: int,
        *,
        init: Init,
        layout: TensorParallel,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.weight = nn.Parameter(torch.empty(positions, hidden, dtype=dtype, device=device))
        self.shard_specs = {
            "weight": replicated((positions, hidden), init=init, sum_grad_over_tp=layout.shards_sequence)
        }

    def forward(self, position_ids: Tensor) -> Tensor:
        rows = self.layout.rows(position_ids.shape[1])
        return lookup(position_ids[:, rows].t(), self.weight)


class Embedding(nn.Module):
    """tokens [b, s] -> [e, b, h]: the word's vector, plus the position's where positions are learned, dropped out.

    `dtype` is that of the residual stream, which starts here.
    """

    def __init__(
        self,
        *,
        word: VocabParallelEmbedding,
        position: LearnedPositions | None,
        dropout: HiddenDropout,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.word, self.position, self.dropout, self.dtype = word, position, dropout, dtype

    def forward(self, tokens: Tensor, context: Context) -> Tensor:
        x = self.word(tokens.t()).to(self.dtype)
        if self.position is not None:
            x = x + self.position(context.position_ids)
        return self.dropout(x, context)


class Continued(nn.Module):
    """In the place of the embedding where a stage before has it: hidden [e, b, h] goes through as it is.

    `word` is a copy of the embedding's matrix, held here for the head that is tied to it.
    """

    def __init__(self, word: VocabParallelEmbedding | None) -> None:
        super().__init__()
        self.word = word

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x
