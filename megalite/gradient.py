"""The one way in for gradients: into a parameter's `main_grad`, a view of its contiguous buffer."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MainGrad:
    """Where the gradient of one parameter is summed over micro-batches, until `close`.

    `view` gives memory of the parameter's shape and the dtype of main grads, the same until `close`. The first write
    overwrites, so that nothing has to be zeroed; `on_write` is told of each write.
    """

    __slots__ = ("fresh", "on_write", "view")

    def __init__(self, view: Callable[[], Tensor], on_write: Callable[[], None]) -> None:
        self.view, self.on_write = view, on_write
        self.fresh = True

    def add(self, grad: Tensor) -> None:
        """Add a gradient of the parameter's shape."""
        if self.fresh:
            self.view().copy_(grad)
        else:
            self.view().add_(grad)
        self._written()

    def add_product(self, a: Tensor, b: Tensor) -> None:
        """Add the matrix product a @ b, inside the multiplication where the dtypes allow it."""
        view = self.view()
        if a.dtype != view.dtype:
            self.add(a @ b)
            return
        if self.fresh:
            torch.mm(a, b, out=view)
        else:
            view.addmm_(a, b)
        self._written()

    def add_rows(self, ids: Tensor, rows: Tensor) -> None:
        """Add to row `ids[i]` of the gradient the row `rows[i]`; ids [n] int64, rows [n, h]. Sums in main precision."""
        view = self.view()
        if self.fresh:
            view.zero_()
        view.index_add_(0, ids, rows.to(view.dtype))
        self._written()

    def close(self) -> None:
        """End the writes: a parameter that received none has gradient zero."""
        if self.fresh:
            self.view().zero_()
        self.fresh = True

    def _written(self) -> None:
        self.fresh = False
        self.on_write()


Batch = list[tuple[Tensor, Callable[[], None], tuple[Tensor, ...]]]
"""Weights, what computes their gradients, and from what."""


class WeightGrads:
    """When linears compute the gradients of their weights: at once in a whole backward, later in a split one.

    Nobody waits for these gradients, so a pipeline schedule may put them where a rank would be idle (Qi et al. 2023,
    Zero Bubble Pipeline Parallelism).
    """

    def __init__(self) -> None:
        self._open: Batch | None = None
        self._kept: deque[Batch] = deque()

    @property
    def at_once(self) -> bool:
        return self._open is None

    def add(self, weight: Tensor, compute: Callable[[], None], *sources: Tensor) -> None:
        """Compute the gradient of the weight now, or keep that, and so what it reads, for `compute_kept`."""
        if self._open is None:
            compute()
        else:
            self._open.append((weight, compute, sources))

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep, as one batch, what is added while the context lasts."""
        self._open = []
        yield
        self._kept.append(self._open)
        self._open = None

    @property
    def oldest(self) -> list[Tensor]:
        """The weights of the batch that has been kept for longest."""
        return [weight for weight, _, _ in self._kept[0]]

    @property
    def sources(self) -> Iterator[Tensor]:
        """All that is kept."""
        for batch in self._kept:
            for _, _, sources in batch:
                yield from sources

    @torch.no_grad()
    def compute_kept(self) -> None:
        """Compute the batch that has been kept for longest."""
        for _, compute, _ in self._kept.popleft():
            compute()


def attach(parameter: nn.Parameter, main_grad: MainGrad) -> None:
    """Send all that autograd computes for the parameter to its main grad, and keep `.grad` empty."""
    parameter.main_grad = main_grad  # type: ignore[attr-defined]
    parameter.register_post_accumulate_grad_hook(_move)


def _move(parameter: Tensor) -> None:
    # No closure over the main grad: what a hook refers to, Python's collector does not see, and would never free.
    if parameter.grad is not None:
        main_grad_of(parameter).add(parameter.grad)
        parameter.grad = None


def main_grad_of(parameter: Tensor) -> MainGrad:
    """The main grad that `attach` hung on the parameter."""
    return parameter.main_grad  # type: ignore[attr-defined]


def main_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of main grads, main params, losses and statistics: float32, or wider where the model is wider."""
    return torch.promote_types(dtype, torch.float32)
