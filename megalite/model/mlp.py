"""The feed-forward block, its width split over tp."""

from collections.abc import Callable

from torch import Tensor, nn


class MLP(nn.Module):
    """x [e, b, h] -> [e, b, h] through fc1, an activation, fc2."""

    def __init__(self, *, fc1: nn.Module, activation: Callable[[Tensor], Tensor], fc2: nn.Module) -> None:
        super().__init__()
        self.fc1, self.activation, self.fc2 = fc1, activation, fc2

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))
