"""The rows of a family's table: one of our tensors, the Hugging Face tensors it is made of, and how.

Legend: g query groups, q queries per group, hn head dim, h hidden size, f MLP width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Row:
    """`join` makes our tensor of theirs, `split` undoes it; neither changes a bit of a value."""

    ours: str
    shape: tuple[int, ...]
    """Our global shape."""
    theirs: tuple[str, ...]
    join: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor], Sequence[Tensor]]

    @property
    def their_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of their tensors, found without any memory."""
        return [tuple(part.shape) for part in self.split(torch.empty(self.shape, device="meta"))]


def same(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """One tensor that both sides hold alike."""
    return Row(ours=ours, shape=shape, theirs=(theirs,), join=lambda parts: parts[0], split=lambda tensor: [tensor])


def stacked(ours: str, theirs: Sequence[str], shape: tuple[int, ...]) -> Row:
    """Ours holds theirs one after the other along a first dimension: gate and up, (2, f, h)."""
    return Row(
        ours=ours,
        shape=shape,
        theirs=tuple(theirs),
        join=lambda parts: torch.stack(list(parts)),
        split=lambda tensor: tensor.unbind(0),
    )


def grouped_qkv(ours: str, theirs: Sequence[str], shape: tuple[int, ...]) -> Row:
    """Ours is (g, q + 2, hn[, h]): per group its queries, its key, its value. Theirs are q, k, v: (heads * hn[, h])."""
    groups, per_group, *rest = shape

    def join(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.reshape(groups, -1, *rest) for part in parts], dim=1)

    def split(tensor: Tensor) -> Sequence[Tensor]:
        return [part.reshape(-1, *rest[1:]) for part in tensor.split([per_group - 2, 1, 1], dim=1)]

    return Row(ours=ours, shape=shape, theirs=tuple(theirs), join=join, split=split)


def flat(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """A vector to which we give the shape of our matrix's outputs."""
    return Row(
        ours=ours,
        shape=shape,
        theirs=(theirs,),
        join=lambda parts: parts[0].reshape(shape),
        split=lambda tensor: [tensor.reshape(-1)],
    )


def transposed(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """A matrix (outputs, inputs) that they store as (inputs, outputs); ours may give its outputs several dimensions."""
    return Row(
        ours=ours,
        shape=shape,
        theirs=(theirs,),
        join=lambda parts: parts[0].t().reshape(shape),
        split=lambda tensor: [tensor.reshape(-1, shape[-1]).t()],
    )


def fused_qkv(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """Ours is (heads, 3, hn[, h]). Theirs holds all queries, then all keys, then all values: ([h, ]3 * heads * hn)."""
    heads, three, *rest = shape

    def join(parts: Sequence[Tensor]) -> Tensor:
        return parts[0].t().reshape(three, heads, *rest).transpose(0, 1)

    def split(tensor: Tensor) -> Sequence[Tensor]:
        return [tensor.transpose(0, 1).reshape(-1, *rest[1:]).t()]

    return Row(ours=ours, shape=shape, theirs=(theirs,), join=join, split=split)
