"""Causal attention cores. q [b, np, sq, hn] meets k, v [b, ng, sk, hn]; the last query stands at the last key."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from megalite.ops.dropout import Draw, attention_dropout


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by torch's fused kernels, without a mask where causality suffices. -> [b, np, sq, hn]"""
    queries, keys, grouped = q.shape[2], k.shape[2], q.shape[1] != k.shape[1]
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    mask = None if queries == 1 else _hidden(queries, keys, q.device).logical_not()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *, p: float, draw: Draw, layer: int, first_head: int) -> Tensor:
    """Attention with dropout on the probabilities, by explicit softmax: torch's own mask depends on its generator."""
    copies = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(_hidden(q.shape[2], k.shape[2], q.device), float("-inf"))
    probs = torch.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    return attention_dropout(probs, p, draw=draw, layer=layer, first_head=first_head) @ v


def _hidden(queries: int, keys: int, device: torch.device) -> Tensor:
    """[queries, keys] True where a key lies in a query's future."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)
