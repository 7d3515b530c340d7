"""Self-attention with heads split over tp.

s sequence, e rows between regions, b micro-batch, h hidden, hn head dim; on this rank ng query groups and np heads
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from megalite.model.context import Context
from megalite.ops.attention import fused_attention, softmax_attention
from megalite.ops.document_attention import document_attention
from megalite.ops.dropout import attention_dropout
from megalite.ops.rotary import rotate
from megalite.shard import Init, ShardSpec
from megalite.tensor_parallel.layout import TensorParallel


class FusedCore(nn.Module):
    """q [b, np, sq, hn], k and v [b, ng, sk, hn] -> [b, np, sq, hn], by torch's fused kernels; documents one by one."""

    def __init__(self, *, window: int | None) -> None:
        super().__init__()
        self.window = window

    def hidden(self, q: Tensor, k: Tensor, context: Context) -> Tensor | None:
        return context.hidden(q.shape[2], k.shape[2], window=self.window)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        if context.documents is not None:
            return document_attention(q, k, v, context.documents, window=self.window)
        return fused_attention(q, k, v, self.hidden(q, k, context))


class DropoutCore(FusedCore):
    """The same with dropout on the probabilities; where nothing is drawn, fused attention gives the same."""

    def __init__(self, p: float, *, layer: int, first_head: int, window: int | None) -> None:
        super().__init__(window=window)
        self.p, self.layer, self.first_head = p, layer, first_head

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        if context.draw is None:
            return super().forward(q, k, v, context)
        return softmax_attention(q, k, v, self.hidden(q, k, context), dropout=self.dropout(context))

    def dropout(self, context: Context) -> Callable[[Tensor], Tensor]:
        if context.draw is None or self.p == 0:
            return lambda probs: probs
        return partial(attention_dropout, p=self.p, draw=context.draw, layer=self.layer, first_head=self.first_head)


class SoftmaxCore(DropoutCore):
    """Attention of which the softmax itself is another: scores scaled by `coefficient`, one more score for each head.

    `sink` [np] is that score, of attending to nothing (Miller 2023; Agarwal et al. 2025); None: there is none.
    """

    sink: Tensor | None

    def __init__(
        self, p: float, *, layer: int, first_head: int, window: int | None, coefficient: float, sink: Tensor | None
    ) -> None:
        super().__init__(p, layer=layer, first_head=first_head, window=window)
        self.coefficient = coefficient
        self.register_buffer("sink", sink, persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return softmax_attention(
            *(q, k, v, self.hidden(q, k, context)),
            coefficient=self.coefficient,
            sink=self.sink,
            dropout=self.dropout(context),
        )

    def learn_sink(
        self, heads: int, *, init: Init, layout: TensorParallel, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Make the sink a parameter, split over tp as the heads are."""
        part = heads // layout.tp.size
        split = (layout.tp.rank * part, (layout.tp.rank + 1) * part)
        del self.sink
        self.sink = nn.Parameter(torch.empty(part, dtype=dtype, device=device))
        self.shard_specs = {"sink": ShardSpec(global_shape=(heads,), init=init, split_dim=0, split=split)}


Heads = tuple[Tensor, Tensor, Tensor]
"""Queries [s, b, ng, q, hn], keys and values [s, b, ng, 1, hn]."""


def turned(q: Tensor, k: Tensor, v: Tensor, context: Context, *, neighbours: bool) -> Heads:
    """Queries and keys with rotary positions; `neighbours` says which channels turn together.

    Values move out of the memory that they share with what the queries and keys were, which backward does not need.
    """
    assert context.angles is not None
    q, k = (rotate(x, *context.angles, neighbours=neighbours) for x in (q, k))
    return q, k, v.movedim(0, -2).contiguous().movedim(-2, 0)


def unturned(q: Tensor, k: Tensor, v: Tensor, context: Context) -> Heads:
    """Queries and keys that tell nothing of their places."""
    return q, k, v


class Attention(nn.Module):
    """x [e, b, h] -> [e, b, h]. `qkv` gives, per query group, its queries, then its key, then its value.

    `q_norm` and `k_norm` act on each head; `position` makes queries and keys tell of their places.
    """

    def __init__(
        self,
        layer: int,
        *,
        qkv: nn.Module,
        out: nn.Module,
        core: FusedCore,
        queries_per_group: int,
        head_dim: int,
        q_norm: nn.Module,
        k_norm: nn.Module,
        position: Callable[[Tensor, Tensor, Tensor, Context], Heads],
    ) -> None:
        super().__init__()
        self.layer, self.position = layer, position
        self.queries_per_group, self.head_dim = queries_per_group, head_dim
        self.qkv, self.out, self.core, self.q_norm, self.k_norm = qkv, out, core, q_norm, k_norm

    def forward(self, x: Tensor, context: Context) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.queries_per_group + 2, self.head_dim))  # [s, b, ng, q + 2, hn]
        q, k, v = qkv.split([self.queries_per_group, 1, 1], dim=3)
        q, k, v = self.position(self.q_norm(q), self.k_norm(k), v, context)
        q, k, v = (t.flatten(2, 3).permute(1, 2, 0, 3) for t in (q, k, v))  # [b, np | ng, s, hn]
        k, v = context.cache.extend(self.layer, k, v)
        mixed = self.core(q, k, v, context)  # [b, np, s, hn]
        return self.out(mixed.permute(2, 0, 1, 3).flatten(2))
