"""Rotary position embedding (Su et al. 2021): pairs of channels turn by an angle that grows with the position."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How Llama 3.1 reads further than it was trained for: low frequencies turn `factor` times slower, high ones stay.

    A frequency is low if it turns less than `low` times in `trained` positions, high if more than `high` times; between
    them the two are mixed. (Llama 3 model card and reference configuration.)
    """

    factor: float
    low: float = 1.0
    high: float = 4.0
    trained: int = 8192

    def __call__(self, frequency: Tensor) -> Tensor:
        turns = self.trained * frequency / (2 * math.pi)
        share = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequency * (share + (1 - share) / self.factor)


def rotary_table(
    positions: int,
    dim: int,
    base: float,
    *,
    interpolation: float = 1.0,
    scaling: Scaling | None = None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """cos and sin of every angle: [2, positions, dim / 2]. Computed in fp64, so that it is right at any position."""
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if scaling is not None:
        frequency = scaling(frequency)
    angle = torch.arange(positions, dtype=torch.float64).unsqueeze(1) / interpolation * frequency
    return torch.stack([angle.cos(), angle.sin()]).to(device=device, dtype=dtype)


def _turn_halves(x: Tensor, cos: Tensor, sin: Tensor, y: Tensor) -> Tensor:
    half = sin.shape[-1]
    torch.mul(x, cos, out=y)
    y[..., :half].addcmul_(x[..., half:], sin, value=-1)
    y[..., half:].addcmul_(x[..., :half], sin)
    return y


def _turn_neighbours(x: Tensor, cos: Tensor, sin: Tensor, y: Tensor) -> Tensor:
    cos = cos[..., : sin.shape[-1]]
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return y.copy_(torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2))


class _Rotate(torch.autograd.Function):
    """A rotation's gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, neighbours: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.turn = _turn_neighbours if neighbours else _turn_halves
        # The sequence next to the channels in memory: attention reads each head's positions in a row.
        y = x.new_empty(*x.shape[1:-1], x.shape[0], x.shape[-1]).movedim(-2, 0)
        return ctx.turn(x, cos, sin, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return ctx.turn(grads[0], cos, -sin, torch.empty_like(grads[0])), None, None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, neighbours: bool = False) -> Tensor:
    """x [s, b, ..., d], cos [s, b, ..., r] (twice r / 2) and sin [s, b, ..., r / 2] at each token's position -> x, its
    first r channels turned.

    Channel i turns with channel i + r / 2, as in Llama; with `neighbours`, channel 2i with channel 2i + 1.
    """
    turned = cos.shape[-1]
    if turned == x.shape[-1]:
        return _Rotate.apply(x, cos, sin, neighbours)
    return torch.cat([_Rotate.apply(x[..., :turned], cos, sin, neighbours), x[..., turned:]], dim=-1)


def rotary_angles(table: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """What `rotate` takes for heads [s, b, ng, q, d]: table [2, positions, r / 2], position_ids [b, s] int64."""
    cos, sin = table[:, position_ids.t()][..., None, None, :]
    return torch.cat([cos, cos], dim=-1), sin
