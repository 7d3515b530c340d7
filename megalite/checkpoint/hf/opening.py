"""A Hugging Face folder, opened: what it says of its model, and the tensors that ours are made of, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalite.checkpoint.foreign import ForeignTensor, check_tensors
from megalite.checkpoint.hf.families import family_of
from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.folder import ModelFolder
from megalite.checkpoint.hf.rows import Row

_FOLLOWING = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Tensors in old files that follow from the config: rotary frequencies, and GPT-2's causal mask."""


@dataclass(frozen=True, kw_only=True)
class OpenedFolder:
    """Tensors are mapped when they are read."""

    path: Path
    model: Settings
    carried: dict[str, Any]
    """Fields of config.json that do not concern our settings."""
    rows: Sequence[Row]
    tensors: Mapping[str, ForeignTensor]
    """Theirs, by their names."""


def open_folder(path: Path) -> OpenedFolder:
    """Raises ValueError with everything that cannot be expressed, or with all tensors that do not fit."""
    folder = ModelFolder(path)
    family = family_of(folder.config)
    folder.complete_names(family.base)
    model, carried = family.read_config(folder.config)
    rows = family.rows(model)
    [word] = next(row.parts for row in rows if row.ours == "embedding.word.weight")
    copies = {} if model["untie_embeddings_and_output_weights"] else {"lm_head.weight": word.name}
    check_tensors(path, folder.tensors, rows, copies=copies, ignored=_FOLLOWING)
    return OpenedFolder(path=path, model=model, carried=carried, rows=rows, tensors=folder.tensors)
