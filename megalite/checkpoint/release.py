"""A release checkpoint out of tensors that lie elsewhere, under other names: one tensor in memory at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megalite.checkpoint.boxes import whole
from megalite.checkpoint.foreign import ForeignTensor, fill
from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.rows import Row
from megalite.checkpoint.hf.tokenizer import describe_tokenizer
from megalite.checkpoint.place import RELEASE, TRACKER
from megalite.checkpoint.save import Part, save_parts
from megalite.mesh import Group
from megalite.shard import Shard

TokenizerFacts = dict[str, str] | None
ExtraFiles = Callable[[Settings, TokenizerFacts], Mapping[str, bytes]]
"""Files to add to a checkpoint, of its settings and of what `describe_tokenizer` says."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A checkpoint that was made of something else."""

    directory: Path
    model: Settings
    tensors: int
    parameters: int
    tokenizer: TokenizerFacts
    """How to open the tokenizer in the checkpoint's folder `tokenizer`, if it has one that we can open."""


def write_release(
    root: Path,
    held: Mapping[str, ForeignTensor],
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


def _part(held: Mapping[str, ForeignTensor], row: Row, dtype: torch.dtype | None) -> Part:
    stored = {held[part.name].dtype for part in row.parts}
    if dtype is None and len(stored) > 1:
        names = ", ".join(part.name for part in row.parts)
        raise ValueError(f"{names} have different dtypes, {stored}: give one for all with --dtype")
    kept = dtype or stored.pop()

    def produce() -> Tensor:
        shard = Shard(
            name=row.ours, global_shape=row.shape, box=whole(row.shape), tensor=torch.empty(row.shape, dtype=kept)
        )
        fill(shard, row, held)
        return shard.tensor

    return Part(name=row.ours, global_shape=row.shape, box=whole(row.shape), dtype=kept, produce=produce)
