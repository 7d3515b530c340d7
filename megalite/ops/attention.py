"""Causal attention. q [b, np, sq, hn] meets k, v [b, ng, sk, hn]; the last query stands at the last key.

`hidden` is True where a query must not see a key, and broadcasts to [b, np, sq, sk].
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megalite.ops.blocked_attention import blocked_attention, suits


def hidden_keys(
    queries: int, keys: int, *, window: int | None, segment_ids: Tensor | None, device: torch.device
) -> Tensor | None:
    """What a query must not see: its future, what lies more than `window` before it, other documents of its sample.

    segment_ids [b, s] is the document of each token, where documents are apart. None where causality says it all, or
    where a single query sees everything.
    """
    if window is None and segment_ids is None and queries in (keys, 1):
        return None
    distance = torch.arange(keys - queries, keys, device=device).unsqueeze(1) - torch.arange(keys, device=device)
    hidden = distance < 0
    if window is not None:
        hidden |= distance > window
    if segment_ids is not None:
        hidden = hidden | (segment_ids.unsqueeze(2) != segment_ids.unsqueeze(1)).unsqueeze(1)
    return hidden


def fused_attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    """Attention by torch's fused kernels, without a mask where causality suffices. -> [b, np, sq, hn]"""
    causal = hidden is None and q.shape[2] > 1
    if causal and suits(q, k):
        return blocked_attention(q, k, v)
    seen = None if hidden is None else ~hidden
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


class _Softmax(torch.autograd.Function):
    """forward    p = softmax(scores) over the last dimension, computed as wide as the scores, rounded to `dtype`
    backward   dscores = p (dp - sum of p dp), from the rounded p, which the product with v keeps anyway
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, dtype: torch.dtype) -> Tensor:
        probs = torch.softmax(scores, dim=-1).to(dtype)
        ctx.save_for_backward(probs)
        ctx.wide = scores.dtype
        return probs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        [probs] = ctx.saved_tensors
        return torch._softmax_backward_data(grads[0].to(ctx.wide), probs.to(ctx.wide), -1, ctx.wide), None


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor | None,
    *,
    coefficient: float = 1.0,
    sink: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] = lambda probs: probs,
) -> Tensor:
    """Attention by explicit softmax in at least fp32, for what the fused kernels cannot do. -> [b, np, sq, hn]

    `coefficient`: scores are divided by it before they are rounded and multiplied after. `sink` [np]: one more score
    for each head, of attending to nothing. `dropout` acts on the probabilities [b, np, sq, sk].
    """
    if hidden is None:
        past = k.shape[2] - q.shape[2]
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1 + past)
    # The queries of a group in one matrix: k and v are then read where they are, not copied for each query.
    grouped = q.reshape(*k.shape[:2], -1, q.shape[-1])
    scores = (grouped @ k.transpose(-2, -1)) / (math.sqrt(q.shape[-1]) * coefficient)
    scores = scores.view(*q.shape[:3], k.shape[2])
    wide = scores.to(torch.promote_types(q.dtype, torch.float32)) * coefficient
    # Behind autograd's back, which would keep the mask: where a probability is 0, its score has gradient 0.
    wide.detach().masked_fill_(hidden, float("-inf"))
    if sink is not None:
        nothing = sink.to(wide.dtype).view(1, -1, 1, 1).expand(*wide.shape[:3], 1)
        wide = torch.cat([wide, nothing], dim=-1)
    probs = dropout(_Softmax.apply(wide, q.dtype)[..., : k.shape[2]])
    return (probs.reshape(*grouped.shape[:3], -1) @ v).view(q.shape)
