"""The activations of the MLP: each maps the output of fc1 [..., parts * f] to the input of fc2 [..., f]."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU: [..., f] -> [..., f] (Hendrycks and Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


def gelu_exact(x: Tensor) -> Tensor:
    """x Phi(x): [..., f] -> [..., f] (Hendrycks and Gimpel 2016)."""
    return F.gelu(x)


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2: [..., f] -> [..., f] (So et al. 2021, Primer)."""
    return F.relu(x).square()


class _Gated(torch.autograd.Function):
    """forward    y = silu(c gate) up / c
    backward   dgate = silu'(c gate) up dy,  dup = silu(c gate) dy / c      from x alone: silu is computed again
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, c: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.c = c
        gate, up = x.chunk(2, dim=-1)
        return _times(F.silu(_times(gate, c)).mul_(up), 1 / c)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        [x] = ctx.saved_tensors
        dx, dy = torch.empty_like(x), grads[0]
        (gate, up), (dgate, dup) = x.chunk(2, dim=-1), dx.chunk(2, dim=-1)
        gate = _times(gate, ctx.c)
        torch.mul(_times(F.silu(gate), 1 / ctx.c), dy, out=dup)
        torch.ops.aten.silu_backward.grad_input(up * dy, gate, grad_input=dgate)
        return dx, None


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) up: [..., 2 f], the gate first -> [..., f] (Shazeer 2020)."""
    return _Gated.apply(x, 1.0)


def quick_geglu(x: Tensor) -> Tensor:
    """gate sigmoid(1.702 gate) up: [..., 2 f], the gate first -> [..., f]."""
    return _Gated.apply(x, 1.702)
