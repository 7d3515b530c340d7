"""Normalisations over the hidden dimension, replicated over tp.

Under sequence parallelism each rank normalises only its rows, so the weights owe a sum of their gradients over tp.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megalite.shard import Init, replicated
from megalite.tensor_parallel.layout import TensorParallel


class Norm(nn.Module):
    """A weight for each hidden channel, 1 at first."""

    def __init__(
        self, hidden: int, *, eps: float, layout: TensorParallel, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden, dtype=dtype, device=device))
        self.shard_specs = {
            "weight": replicated((hidden,), init=Init(constant=1.0), sum_grad_over_tp=layout.shards_sequence)
        }


class RMSNorm(Norm):
    """x / rms(x) * weight (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class LayerNorm(Norm):
    """(x - mean(x)) / std(x) * weight + bias (Ba et al. 2016)."""

    def __init__(
        self, hidden: int, *, eps: float, layout: TensorParallel, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(hidden, eps=eps, layout=layout, dtype=dtype, device=device)
        self.bias = nn.Parameter(torch.empty(hidden, dtype=dtype, device=device))
        self.shard_specs["bias"] = replicated((hidden,), init=Init(), sum_grad_over_tp=layout.shards_sequence)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
