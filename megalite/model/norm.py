"""Normalisations over the last dimension, their weights replicated over tp."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megalite.ops.norm import rms_norm
from megalite.ops.registry import Kernels
from megalite.shard import Init, replicated


class Norm(nn.Module):
    """A weight for each of `width` channels, 1 at first; kept as the distance from `origin`, which is 0 or 1.

    A norm that `shifts` has a bias for each channel too, 0 at first.
    `sum_grad_over_tp`: each tp rank sees only a part of what is normalised (some rows, or some heads).
    The result has the dtype of the weight, whatever x has.
    """

    weight: nn.Parameter
    shifts = False

    def __init__(
        self,
        width: int,
        *,
        eps: float,
        origin: float,
        sum_grad_over_tp: bool,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.eps, self.origin, self.kernels = eps, origin, kernels
        starts = {"weight": Init(constant=1.0 - origin)} | ({"bias": Init()} if self.shifts else {})
        for name in starts:
            self.register_parameter(name, nn.Parameter(torch.empty(width, dtype=dtype, device=device)))
        self.shard_specs = {
            name: replicated((width,), init=init, sum_grad_over_tp=sum_grad_over_tp) for name, init in starts.items()
        }

    def gain(self, x: Tensor) -> Tensor:
        """What the normalised x is multiplied by, in its dtype."""
        weight = self.weight.to(x.dtype)
        return weight + self.origin if self.origin else weight


class RMSNorm(Norm):
    """x / rms(x) * weight (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps=self.eps, origin=self.origin, kernels=self.kernels)


class LayerNorm(Norm):
    """(x - mean(x)) / std(x) * weight + bias (Ba et al. 2016)."""

    bias: nn.Parameter
    shifts = True

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, self.weight.shape, self.gain(x), self.bias.to(x.dtype), self.eps)
        return y.to(self.weight.dtype)
