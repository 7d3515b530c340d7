"""A release checkpoint out of tensors that lie elsewhere, under other names: one tensor in memory at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.rows import Row
from megalite.checkpoint.hf.tokenizer import describe_tokenizer
from megalite.checkpoint.place import RELEASE, TRACKER
from megalite.checkpoint.save import Part, save_parts
from megalite.mesh import Group

_SHOWN = 40  # problems in an error
TokenizerFacts = dict[str, str] | None
ExtraFiles = Callable[[Settings, TokenizerFacts], Mapping[str, bytes]]
"""Files to add to a checkpoint, of its settings and of what `describe_tokenizer` says."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """One tensor that lies somewhere; `read` maps it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A checkpoint that was made of something else."""

    directory: Path
    model: Settings
    tensors: int
    parameters: int
    tokenizer: TokenizerFacts
    """How to open the tokenizer in the checkpoint's folder `tokenizer`, if it has one that we can open."""


def check_tensors(
    source: Path, held: Mapping[str, Held], rows: Sequence[Row], *, copies: Mapping[str, str], ignored: tuple[str, ...]
) -> None:
    """ValueError with all tensors that are missing, left over, or of another shape than the settings give them.

    `copies` may be there too if they equal what they are copies of, and names that end with one of `ignored`.
    """
    wanted = {name: shape for row in rows for name, shape in zip(row.theirs, row.their_shapes, strict=True)}
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


def write_release(
    root: Path,
    held: Mapping[str, Held],
    rows: Sequence[Row],
    *,
    model: Settings,
    origin: dict[str, Any],
    tokenizer: Mapping[str, bytes],
    dtype: torch.dtype | None,
    extra_files: ExtraFiles,
) -> Imported:
    """Write the release checkpoint under `root`; tensors keep their dtype unless one is given.

    `origin` is added to the scalars: what only the source knows. Raises ValueError before anything is written.
    """
    if (root / TRACKER).is_file() and (root / TRACKER).read_text().strip() != RELEASE:
        raise ValueError(f"--save {root} holds the checkpoints of a training; give a new folder for the converted one")
    parts = [_part(held, row, dtype) for row in rows]
    facts = describe_tokenizer(tokenizer)
    scalars = {  # no optimizer_step: there is no optimizer to continue
        "iteration": 0,
        "consumed_train_samples": 0,
        "parallel": {},
        "model": {name: value for name, value in model.items() if name != "vocab_size"},
        "vocab_size": model["vocab_size"],
        "tokenizer": facts,
        **origin,
    }
    files = {**{f"tokenizer/{name}": data for name, data in tokenizer.items()}, **extra_files(model, facts)}
    saved = save_parts(root, None, parts, scalars, files, Group(name="world", ranks=(0,), rank=0))
    return Imported(
        directory=saved.directory,
        model=model,
        tensors=len(parts),
        parameters=sum(torch.Size(row.shape).numel() for row in rows),
        tokenizer=facts,
    )


def _part(held: Mapping[str, Held], row: Row, dtype: torch.dtype | None) -> Part:
    def produce() -> Tensor:
        tensors = [held[name].read() for name in row.theirs]
        return row.join([tensor if dtype is None else tensor.to(dtype) for tensor in tensors])

    stored = {held[name].dtype for name in row.theirs}
    if dtype is None and len(stored) > 1:
        raise ValueError(f"{', '.join(row.theirs)} have different dtypes, {stored}: give one for all with --dtype")
    return Part(
        name=row.ours,
        global_shape=row.shape,
        box=tuple((0, n) for n in row.shape),
        dtype=dtype or stored.pop(),
        produce=produce,
    )
