"""Dropout whose mask is a function of where an element stands, never of the layout that computes it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from megalite.ops.philox import derive_key, philox


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What the masks of one forward pass depend on: the seed, the step, and each sample's index in the global batch."""

    seed: int
    step: int
    samples: Tensor
    """[b] int64"""

    def key(self, site: str, layer: int) -> tuple[int, int]:
        return derive_key(self.seed, self.step, site, layer)


def keep_mask(key: tuple[int, int], p: float, *, first: Tensor, second: Tensor, third: Tensor, length: int) -> Tensor:
    """True where an element survives dropout with probability p of being dropped.

    `first`, `second` and `third` are int64 coordinates that broadcast to some shape [...]; the mask is [..., length],
    its last coordinate 0 .. length - 1. One Philox call serves four neighbours.
    """
    block = torch.arange((length + 3) // 4, device=first.device)
    words = philox(key, (first.unsqueeze(-1), second.unsqueeze(-1), third.unsqueeze(-1), block))
    bits = torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(-2)
    return bits[..., :length] >= round(p * 2**32)


def _kept(x: Tensor, keep: Tensor, p: float) -> Tensor:
    return x.masked_fill(~keep, 0) * (1 / (1 - p))


def hidden_dropout(x: Tensor, p: float, *, draw: Draw, site: str, layer: int, rows: slice) -> Tensor:
    """x [e, b, h], the positions `rows` of each sample -> x with a share p of its elements zero, the rest scaled."""
    positions = torch.arange(rows.start, rows.stop, device=x.device).unsqueeze(1)
    samples = draw.samples.unsqueeze(0)
    zero = torch.zeros_like(samples)
    keep = keep_mask(draw.key(site, layer), p, first=samples, second=positions, third=zero, length=x.shape[-1])
    return _kept(x, keep, p)


def attention_dropout(probs: Tensor, p: float, *, draw: Draw, layer: int, first_head: int) -> Tensor:
    """probs [b, np, s, s] of the heads from `first_head` on, dropped by (sample, head, query, key)."""
    _, heads, queries, keys = probs.shape
    head = torch.arange(first_head, first_head + heads, device=probs.device).view(1, -1, 1)
    query = torch.arange(queries, device=probs.device).view(1, 1, -1)
    sample = draw.samples.view(-1, 1, 1)
    keep = keep_mask(draw.key("attention probabilities", layer), p, first=sample, second=query, third=head, length=keys)
    return _kept(probs, keep, p)
