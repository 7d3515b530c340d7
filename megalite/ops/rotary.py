"""Rotary position embedding (Su et al. 2021), the half-split form of Llama: channel i turns with channel i + d / 2."""

from typing import Any

import torch
from torch import Tensor


def rotary_table(positions: int, dim: int, base: float, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """cos and sin of every angle: [2, positions, dim / 2]. Computed in fp64, so that it is right at any position."""
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(positions, dtype=torch.float64).unsqueeze(1) * frequency
    return torch.stack([angle.cos(), angle.sin()]).to(device=device, dtype=dtype)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class _Rotate(torch.autograd.Function):
    """A rotation's gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grads[0], cos, -sin), None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [s, b, ..., d], cos and sin [s, b, ..., d / 2] at each token's position -> x turned by its position."""
    return _Rotate.apply(x, cos, sin)
