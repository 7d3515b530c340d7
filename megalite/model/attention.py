"""Self-attention with heads split over tp.

s sequence, e rows between regions, b micro-batch, h hidden, hn head dim; on this rank ng query groups and np heads
"""

from typing import Protocol

from torch import Tensor, nn

from megalite.model.context import Context
from megalite.ops.attention import sdpa, softmax_attention
from megalite.ops.dropout import Draw
from megalite.ops.rotary import rotate


class Core(Protocol):
    """q [b, np, sq, hn], k and v [b, ng, sk, hn] -> [b, np, sq, hn]"""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, draw: Draw | None) -> Tensor: ...


class FusedCore:
    """Attention without dropout, by torch's fused kernels."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, draw: Draw | None) -> Tensor:
        return sdpa(q, k, v)


class DropoutCore:
    """Attention with dropout on its probabilities; where nothing is drawn, fused attention gives the same."""

    def __init__(self, p: float, *, layer: int, first_head: int) -> None:
        self.p, self.layer, self.first_head = p, layer, first_head

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, draw: Draw | None) -> Tensor:
        if draw is None:
            return sdpa(q, k, v)
        return softmax_attention(q, k, v, p=self.p, draw=draw, layer=self.layer, first_head=self.first_head)


class Attention(nn.Module):
    """x [e, b, h] -> [e, b, h]. `qkv` gives, per query group, its queries, then its key, then its value."""

    def __init__(
        self, layer: int, *, qkv: nn.Module, out: nn.Module, core: Core, queries_per_group: int, head_dim: int
    ) -> None:
        super().__init__()
        self.layer, self.core = layer, core
        self.queries_per_group, self.head_dim = queries_per_group, head_dim
        self.qkv, self.out = qkv, out

    def forward(self, x: Tensor, context: Context) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.queries_per_group + 2, self.head_dim))  # [s, b, ng, q + 2, hn]
        qk, v = qkv.split([self.queries_per_group + 1, 1], dim=3)
        if context.angles is not None:
            qk = rotate(qk, *context.angles)
        q, k = qk.split([self.queries_per_group, 1], dim=3)
        q, k, v = (t.flatten(2, 3).permute(1, 2, 0, 3) for t in (q, k, v))  # [b, np | ng, s, hn]
        k, v = context.cache.extend(self.layer, k, v)
        mixed = self.core(q, k, v, context.draw)  # [b, np, s, hn]
        return self.out(mixed.permute(2, 0, 1, 3).flatten(2).contiguous())
