"""Tensors that lie in the files of others, under other names: known, checked, and copied out of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megalite.checkpoint.boxes import intersect, slices
from megalite.checkpoint.hf.rows import Row
from megalite.shard import Shard

_SHOWN = 40  # problems in an error


@dataclass(frozen=True, kw_only=True)
class Held:
    """One tensor that lies somewhere; `read` maps it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


def check_tensors(
    source: Path, held: Mapping[str, Held], rows: Sequence[Row], *, copies: Mapping[str, str], ignored: tuple[str, ...]
) -> None:
    """ValueError with all tensors that are missing, left over, or of another shape than the settings give them.

    `copies` may be there too if they equal what they are copies of, and names that end with one of `ignored`.
    """
    wanted = {part.name: part.shape for row in rows for part in row.parts}
    problems = [f"  missing: {name}" for name in wanted if name not in held]
    for name, tensor in held.items():
        if name in wanted:
            if tensor.shape != wanted[name]:
                problems.append(f"  wrong shape: {name} is {tensor.shape}, and the settings make it {wanted[name]}")
        elif name in copies:
            if copies[name] in held and not torch.equal(tensor.read(), held[copies[name]].read()):
                problems.append(f"  unexpected: {name} differs from {copies[name]}, to which the settings tie it")
        elif not name.endswith(ignored):
            problems.append(f"  unexpected: {name}")
    more = len(problems) - _SHOWN
    if problems:
        problems = problems[:_SHOWN] + ([f"  and {more} more"] if more > 0 else [])
        raise ValueError("\n".join([f"{source} does not hold the tensors that its settings ask for:", *problems]))


def fill(shard: Shard, row: Row, held: Mapping[str, Held]) -> None:
    """Copy what a shard holds of our tensor out of theirs, which are mapped, one at a time, and not read whole."""
    for part in row.parts:
        shared = intersect(part.box, shard.box)
        if shared is not None:
            theirs = part.view(held[part.name].read())
            shard.tensor[slices(shared, shard.box)].copy_(theirs[slices(shared, part.box)])
