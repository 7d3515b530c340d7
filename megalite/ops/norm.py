"""RMSNorm over the last dimension (Zhang and Sennrich 2019): y = x / rms(x) * (weight + origin)."""

from typing import Any

import torch
from torch import Tensor

from megalite.ops.registry import Kernels, Op


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, origin: float) -> tuple[Tensor, Tensor]:
    """x [..., h], weight [h] -> y [..., h] of the weight's dtype, rounded once, and 1 / rms [...] in at least fp32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rstd = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    gain = weight.to(wide.dtype)
    y = (wide * rstd).mul_(gain + origin if origin else gain)
    return y.to(weight.dtype), rstd.squeeze(-1)


def rms_norm_backward_reference(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, origin: float
) -> tuple[Tensor, Tensor]:
    """With xhat = x rstd and g = dy (weight + origin): dx = rstd (g - xhat mean(g xhat)), dweight = sum of dy xhat."""
    wide, rstd = rstd.dtype, rstd.unsqueeze(-1)
    xhat, gain = x.to(wide) * rstd, weight.to(wide)
    product = dy.to(wide) * xhat
    dweight = product.flatten(0, -2).sum(0).to(weight.dtype)
    gain = gain + origin if origin else gain
    along = (product @ gain / x.shape[-1]).unsqueeze(-1)
    dx = (dy.to(wide) * gain).addcmul_(xhat, along, value=-1).mul_(rstd)
    return dx.to(x.dtype), dweight


RMS_NORM = Op("rms_norm(Tensor x, Tensor weight, float eps, float origin) -> (Tensor, Tensor)", rms_norm_reference)
RMS_NORM_BACKWARD = Op(
    "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd, float origin) -> (Tensor, Tensor)",
    rms_norm_backward_reference,
)


class _RMSNorm(torch.autograd.Function):
    """forward    y = x rstd (weight + origin)
    backward   dx, dweight from x and rstd alone
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, origin: float, kernels: Kernels) -> Tensor:
        y, rstd = kernels[RMS_NORM](x, weight, eps, origin)
        ctx.save_for_backward(x, weight, rstd)
        ctx.origin, ctx.kernels = origin, kernels
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        return *ctx.kernels[RMS_NORM_BACKWARD](grads[0], x, weight, rstd, ctx.origin), None, None, None


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, origin: float, kernels: Kernels) -> Tensor:
    """x [..., h], weight [h], kept as the distance from `origin` -> [..., h] of the weight's dtype."""
    return _RMSNorm.apply(x, weight, eps, origin, kernels)
