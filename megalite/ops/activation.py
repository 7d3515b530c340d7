"""The activations of the MLP: each maps the output of fc1 [..., parts * f] to the input of fc2 [..., f]."""

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


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) up: [..., 2 f], the gate first -> [..., f] (Shazeer 2020)."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def quick_geglu(x: Tensor) -> Tensor:
    """gate sigmoid(1.702 gate) up: [..., 2 f], the gate first -> [..., f]."""
    gate, up = x.chunk(2, dim=-1)
    return gate * torch.sigmoid(1.702 * gate) * up
