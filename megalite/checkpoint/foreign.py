"""Tensors that lie in the files of others, under other names: known, checked, and copied out of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megalite.checkpoint.boxes import intersect, slices
from megalite.checkpoint.hf.rows import Row
from megalite.checkpoint.strict import expect
from megalite.shard import Shard


@dataclass(frozen=True, kw_only=True)
class ForeignTensor:
    """One tensor that lies somewhere; `read` maps it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


def check_tensors(
    source: Path,
    held: Mapping[str, ForeignTensor],
    rows: Sequence[Row],
    *,
    copies: Mapping[str, str],
    ignored: tuple[str, ...],
) -> None:
    """ValueError with all tensors that are missing, left over, or of another shape than the settings give them.

    `copies` may be there too if they equal what they are copies of, and names that end with one of `ignored`.
    """
    asked = {part.name: part.shape for row in rows for part in row.parts}
    there = {name: tensor.shape for name, tensor in held.items() if name in asked or not name.endswith(ignored)}
    changed = []
    for name in copies.keys() & (there.keys() - asked.keys()):
        del there[name]
        if copies[name] in held and not torch.equal(held[name].read(), held[copies[name]].read()):
            changed.append(f"unexpected: {name} differs from {copies[name]}, to which the settings tie it")
    expect(asked, there, source, also=changed)


def fill(shard: Shard, row: Row, held: Mapping[str, ForeignTensor]) -> None:
    """Copy what a shard holds of our tensor out of theirs, which are mapped, one at a time, and not read whole."""
    for part in row.parts:
        shared = intersect(part.box, shard.box)
        if shared is not None:
            theirs = part.view(held[part.name].read())
            shard.tensor[slices(shared, shard.box)].copy_(theirs[slices(shared, part.box)])
