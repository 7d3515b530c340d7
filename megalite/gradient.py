"""The one way in for gradients: into a parameter's `main_grad`, a view of its contiguous buffer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class MainGrad:
    """Where the gradient of one parameter is summed over the micro-batches of a step.

    `view` has the parameter's shape and the dtype of main grads. The first write of a step overwrites, so that nothing
    has to be zeroed; `on_write` is told of each write.
    """

    __slots__ = ("fresh", "on_write", "view")

    def __init__(self, view: Tensor, on_write: Callable[[], None]) -> None:
        self.view, self.on_write = view, on_write
        self.fresh = True

    def add(self, grad: Tensor) -> None:
        """Add a gradient of the parameter's shape."""
        if self.fresh:
            self.view.copy_(grad)
        else:
            self.view.add_(grad)
        self._written()

    def add_product(self, a: Tensor, b: Tensor) -> None:
        """Add the matrix product a @ b, inside the multiplication where the dtypes allow it."""
        if a.dtype != self.view.dtype:
            self.add(a @ b)
            return
        if self.fresh:
            torch.mm(a, b, out=self.view)
        else:
            self.view.addmm_(a, b)
        self._written()

    def add_rows(self, ids: Tensor, rows: Tensor) -> None:
        """Add to row `ids[i]` of the gradient the row `rows[i]`; ids [n] int64, rows [n, h]. Sums in main precision."""
        if self.fresh:
            self.view.zero_()
        self.view.index_add_(0, ids, rows.to(self.view.dtype))
        self._written()

    def close(self) -> None:
        """End the step's writes: a parameter that received none has gradient zero."""
        if self.fresh:
            self.view.zero_()
        self.fresh = True

    def _written(self) -> None:
        self.fresh = False
        self.on_write()


def attach(parameter: nn.Parameter, main_grad: MainGrad) -> None:
    """Send all that autograd computes for the parameter to its main grad, and keep `.grad` empty."""

    def move(p: Tensor) -> None:
        if p.grad is not None:
            main_grad.add(p.grad)
            p.grad = None

    parameter.main_grad = main_grad  # type: ignore[attr-defined]
    parameter.register_post_accumulate_grad_hook(move)


def main_grad_of(parameter: Tensor) -> MainGrad:
    """The main grad that `attach` hung on the parameter."""
    return parameter.main_grad  # type: ignore[attr-defined]


def main_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of main grads, main params, losses and statistics: float32, or wider where the model is wider."""
    return torch.promote_types(dtype, torch.float32)
