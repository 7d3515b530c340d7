"""The rows of a family's table: one of our tensors, and the Hugging Face tensors that it is made of.

Each of theirs is one box of ours, seen in another shape: what is copied is decided by boxes alone, as in a checkpoint.
Tables are plain data, so that settings can be read without torch.

Legend: g query groups, q queries per group, hn head dim, h hidden size, f MLP width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megalite.checkpoint.boxes import whole

if TYPE_CHECKING:
    from torch import Tensor

    from megalite.shard import Box


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One of their tensors as a box of ours; neither direction changes a bit of a value."""

    name: str
    shape: tuple[int, ...]
    """Theirs."""
    box: Box
    view: Callable[[Tensor], Tensor]
    """Their tensor in the shape of the box: a view, which needs no memory."""
    back: Callable[[Tensor], Tensor]
    """What the box holds, in their shape."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One of our tensors; `parts` fill it."""

    ours: str
    shape: tuple[int, ...]
    """Our global shape."""
    parts: tuple[Seen, ...]


def reshaped(name: str, shape: tuple[int, ...], box: Box) -> Seen:
    """A tensor whose elements lie in the box in the same order."""
    inner = [stop - start for start, stop in box]
    return Seen(
        name=name,
        shape=shape,
        box=box,
        view=lambda tensor: tensor.reshape(inner),
        back=lambda tensor: tensor.reshape(shape),
    )


def same(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """One tensor that both sides hold alike."""
    return Row(ours=ours, shape=shape, parts=(reshaped(theirs, shape, whole(shape)),))


def stacked(ours: str, theirs: Sequence[str], shape: tuple[int, ...]) -> Row:
    """Ours holds theirs one after the other along a first dimension: gate and up, (2, f, h)."""
    inner = shape[1:]
    parts = (reshaped(name, inner, ((n, n + 1), *whole(inner))) for n, name in enumerate(theirs))
    return Row(ours=ours, shape=shape, parts=tuple(parts))


def grouped_qkv(ours: str, theirs: Sequence[str], shape: tuple[int, ...]) -> Row:
    """Ours is (g, q + 2, hn[, h]): per group its queries, its key, its value. Theirs are q, k, v: (heads * hn[, h])."""
    groups, per_group, hn, *rest = shape
    ranges = ((0, per_group - 2), (per_group - 2, per_group - 1), (per_group - 1, per_group))
    parts = (
        reshaped(name, (groups * (stop - start) * hn, *rest), ((0, groups), (start, stop), *whole((hn, *rest))))
        for name, (start, stop) in zip(theirs, ranges, strict=True)
    )
    return Row(ours=ours, shape=shape, parts=tuple(parts))


def flat(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """A vector to which we give the shape of our matrix's outputs."""
    return Row(ours=ours, shape=shape, parts=(reshaped(theirs, (math.prod(shape),), whole(shape)),))


def transposed(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """A matrix (outputs, inputs) that they store as (inputs, outputs); ours may give its outputs several dimensions."""
    *outputs, inputs = shape
    part = Seen(
        name=theirs,
        shape=(inputs, math.prod(outputs)),
        box=whole(shape),
        view=lambda tensor: tensor.t().reshape(shape),
        back=lambda tensor: tensor.reshape(-1, inputs).t(),
    )
    return Row(ours=ours, shape=shape, parts=(part,))


def fused_qkv(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """Ours is (heads, 3, hn[, h]). Theirs holds all queries, then all keys, then all values: ([h, ]3 * heads * hn)."""
    heads, three, hn, *rest = shape
    part = Seen(
        name=theirs,
        shape=(*rest, three * heads * hn),
        box=whole(shape),
        view=lambda tensor: tensor.t().reshape(three, heads, hn, *rest).transpose(0, 1),
        back=lambda tensor: tensor.transpose(0, 1).reshape(-1, *rest).t(),
    )
    return Row(ours=ours, shape=shape, parts=(part,))
