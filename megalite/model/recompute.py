"""Recomputation: keep what goes into a part of the model instead of what the part keeps, and compute it again.

Dropout masks are functions of places and steps (`ops/dropout.py`), so the second forward is the first one: there is no
random state to save.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from megalite.comm.collectives import all_gather
from megalite.mesh import Group

Run = Callable[..., Tensor]
"""Tensors, and what else it takes, to one tensor."""


class Store(Protocol):
    """How an input is kept until backward."""

    def put(self, x: Tensor) -> Tensor: ...

    def get(self, kept: Tensor, shape: torch.Size) -> Tensor: ...


class Whole:
    """As it is."""

    def put(self, x: Tensor) -> Tensor:
        return x

    def get(self, kept: Tensor, shape: torch.Size) -> Tensor:
        return kept


class Distributed:
    """What all tp ranks hold alike, a part on each: one all-gather in backward."""

    def __init__(self, tp: Group) -> None:
        self.tp = tp

    def put(self, x: Tensor) -> Tensor:
        # A copy: a view would keep the whole.
        return x.reshape(self.tp.size, -1)[self.tp.rank].clone()

    def get(self, kept: Tensor, shape: torch.Size) -> Tensor:
        return all_gather(kept, self.tp).view(shape)


class _Recompute(torch.autograd.Function):
    """forward    y = run(x ...)      of which only x ... are kept
    backward   run(x ...) again, and its backward, in which parameters get their gradients as always
    """

    @staticmethod
    def forward(ctx: Any, run: Run, store: Store, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*map(store.put, inputs))
        ctx.run, ctx.store, ctx.shapes = run, store, [x.shape for x in inputs]
        # As in the second forward, lest a kernel be chosen by whether there is a gradient; what it keeps is dropped.
        with torch.enable_grad(), saved_tensors_hooks(_drop, _never):
            return run(*_leaves(inputs, ctx.needs_input_grad[2:])).detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kept = zip(ctx.saved_tensors, ctx.shapes, strict=True)
        inputs = _leaves([ctx.store.get(x, shape) for x, shape in kept], ctx.needs_input_grad[2:])
        found: list[Tensor | None] = [None] * len(inputs)
        with torch.enable_grad():
            y = ctx.run(*(_Caught.apply(x, found, i) for i, x in enumerate(inputs)))
        torch.autograd.backward(y, grads[0])
        return None, None, *found


class _Caught(torch.autograd.Function):
    """Catches the gradient of an input as it is: in `.grad` it would get the input's strides, and what is behind would
    sum it in another order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, found: list[Tensor | None], place: int) -> Tensor:
        ctx.found, ctx.place = found, place
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        ctx.found[ctx.place] = grads[0]
        return None, None, None


def _leaves(inputs: tuple[Tensor, ...] | list[Tensor], needed: tuple[bool, ...]) -> list[Tensor]:
    return [x.detach().requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]


def _drop(x: Tensor) -> None:
    return None


def _never(kept: None) -> Tensor:
    raise AssertionError("what was dropped is computed again")


class Recomputed:
    """A part of the model that keeps only the tensors it is called with. Without gradients it is the part itself."""

    def __init__(self, run: Run, store: Store) -> None:
        self.run, self.store = run, store

    def __call__(self, *inputs: Any) -> Tensor:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        others = inputs[len(tensors) :]
        if not torch.is_grad_enabled():
            return self.run(*inputs)
        return _Recompute.apply(lambda *again: self.run(*again, *others), self.store, *tensors)


def chain(layers: list[nn.Module]) -> Run:
    """Layers one after the other."""

    def run(x: Tensor, context: Any) -> Tensor:
        for layer in layers:
            x = layer(x, context)
        return x

    return run


def recompute(module: nn.Module) -> None:
    """Let the module, its name and its parameters' names as they are, keep only its input."""
    module.forward = Recomputed(module.forward, Whole())


def renormalise(norm: nn.Module, block: nn.Module) -> None:
    """Let the block behind a norm keep what the norm was given, which is kept anyway, and normalise it again."""
    _Renormalised(norm, block)


class _Renormalised:
    """Takes the place of both forwards."""

    def __init__(self, norm: nn.Module, block: nn.Module) -> None:
        self.norm, self.block = norm.forward, block.forward
        self.x: Tensor | None = None
        norm.forward, block.forward = self.normalise, self.behind

    def normalise(self, x: Tensor) -> Tensor:
        self.x = x.detach()
        return self.norm(x)

    def behind(self, y: Tensor, *others: Any) -> Tensor:
        x, self.x = self.x, None
        # Hooks take the place of those around them, which are to see the rest.
        around: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
        pack_around, unpack_around = around or (lambda kept: kept, lambda kept: kept)

        def pack(kept: Tensor) -> Any:
            return None if kept.data_ptr() == y.data_ptr() and kept.shape == y.shape else pack_around(kept)

        @torch.no_grad()
        def unpack(kept: Any) -> Tensor:
            return self.norm(x) if kept is None else unpack_around(kept)

        with saved_tensors_hooks(pack, unpack):
            return self.block(y, *others)
