"""What weights are loaded from: a checkpoint, or a folder of Hugging Face. Both say what they hold, and fill shards."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from megalite.checkpoint.format import read_index
from megalite.checkpoint.hf.loading import load_folder
from megalite.checkpoint.hf.opening import open_folder
from megalite.checkpoint.hf.tokenizer import describe_tokenizer, tokenizer_files
from megalite.checkpoint.load import load
from megalite.checkpoint.place import find, is_model_folder
from megalite.mesh import Group
from megalite.shard import Shard


@dataclass(frozen=True, kw_only=True)
class Source:
    """One of the two, read far enough to know its tensors."""

    directory: Path
    scalars: dict[str, Any]
    """What it says of its model, and of the run where it was saved by one."""
    names: Collection[str]
    """Its tensors, as we call them."""
    tokenizer: Path
    """The folder in which the files lie that `scalars["tokenizer"]` names."""
    has_checksums: bool
    load: Callable[[Sequence[Shard], Group], None]
    """Fills the shards of all ranks, each calling it with its own; see `load_strictly`."""


def find_source(root: Path, step: int | None = None) -> Path:
    """The folder that `root` stands for: itself, if it is one of Hugging Face, or that which `place.find` finds."""
    if not is_model_folder(root):
        return find(root, step)
    if step is not None:
        raise ValueError(f"--ckpt-step {step}: {root} is a folder of Hugging Face, which holds no iterations.")
    return root


def open_source(directory: Path, *, verify: bool = False) -> Source:
    """What `find_source` found. `verify` has the checksums checked, before loading, of files that have any.

    Raises ValueError where it is damaged, or has what we cannot express.
    """
    if not is_model_folder(directory):
        index = read_index(directory)
        return Source(
            directory=directory,
            scalars=index.scalars,
            names=index.tensors,
            tokenizer=directory / "tokenizer",
            has_checksums=True,
            load=partial(load, directory, verify=verify, index=index),
        )
    opened = open_folder(directory)
    scalars = {
        "model": {name: value for name, value in opened.model.items() if name != "vocab_size"},
        "vocab_size": opened.model["vocab_size"],
        "tokenizer": describe_tokenizer(tokenizer_files(directory)),
    }
    return Source(
        directory=directory,
        scalars=scalars,
        names=[row.ours for row in opened.rows],
        tokenizer=directory,
        has_checksums=False,
        load=partial(load_folder, opened),
    )
