"""The activations of the MLP: each maps the output of fc1 [..., parts * f] to the input of fc2 [..., f]."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megalite.ops.registry import Kernels, Op


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU: [..., f] -> [..., f] (Hendrycks and Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


def gelu_exact(x: Tensor) -> Tensor:
    """x Phi(x): [..., f] -> [..., f] (Hendrycks and Gimpel 2016)."""
    return F.gelu(x)


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2: [..., f] -> [..., f] (So et al. 2021, Primer)."""
    return F.relu(x).square()


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def glu_reference(x: Tensor, slope: float) -> Tensor:
    """gate sigmoid(slope gate) up: x [..., 2 f], the gate first -> [..., f]."""
    gate, up = x.chunk(2, dim=-1)
    return _times(F.silu(_times(gate, slope)).mul_(up), 1 / slope)


def glu_backward_reference(dy: Tensor, x: Tensor, slope: float) -> Tensor:
    """dy [..., f], x [..., 2 f] -> dx: dgate = silu'(slope gate) up dy, dup = silu(slope gate) dy / slope."""
    dx = torch.empty_like(x)
    (gate, up), (dgate, dup) = x.chunk(2, dim=-1), dx.chunk(2, dim=-1)
    gate = _times(gate, slope)
    torch.mul(_times(F.silu(gate), 1 / slope), dy, out=dup)
    torch.ops.aten.silu_backward.grad_input(up * dy, gate, grad_input=dgate)
    return dx


GLU = Op("glu(Tensor x, float slope) -> Tensor", glu_reference)
GLU_BACKWARD = Op("glu_backward(Tensor dy, Tensor x, float slope) -> Tensor", glu_backward_reference)


class _Gated(torch.autograd.Function):
    """forward    y = gate sigmoid(slope gate) up
    backward   dx from x alone
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float, kernels: Kernels) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope, ctx.kernels = slope, kernels
        return kernels[GLU](x, slope)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.kernels[GLU_BACKWARD](grads[0], *ctx.saved_tensors, ctx.slope), None, None


def swiglu(x: Tensor, *, kernels: Kernels) -> Tensor:
    """silu(gate) up: [..., 2 f], the gate first -> [..., f] (Shazeer 2020)."""
    return _Gated.apply(x, 1.0, kernels)


def quick_geglu(x: Tensor, *, kernels: Kernels) -> Tensor:
    """gate sigmoid(1.702 gate) up: [..., 2 f], the gate first -> [..., f]."""
    return _Gated.apply(x, 1.702, kernels)
