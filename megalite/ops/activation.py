"""The activations of the MLP: each maps the output of fc1 [..., parts * f] to the input of fc2 [..., f]."""

import torch.nn.functional as F
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """The tanh approximation of GELU: [..., f] -> [..., f] (Hendrycks and Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) * up: [..., 2 f], the gate first -> [..., f] (Shazeer 2020)."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up
