"""From a Hugging Face folder to a release checkpoint, one tensor in memory at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megalite.checkpoint.format import RELEASE, TRACKER
from megalite.checkpoint.hf.families import family_of
from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.folder import ModelFolder, read_json
from megalite.checkpoint.hf.rows import Row
from megalite.checkpoint.hf.tokenizer import describe_tokenizer, tokenizer_files
from megalite.checkpoint.save import Part, save_parts
from megalite.mesh import Group

TokenizerFacts = dict[str, str] | None
_FOLLOWING = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Tensors in old files that follow from the config: rotary frequencies, and GPT-2's causal mask."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A checkpoint that was made of a Hugging Face folder."""

    directory: Path
    model: Settings
    tensors: int
    parameters: int
    tokenizer: TokenizerFacts
    """How to open the tokenizer in the checkpoint's folder `tokenizer`, if it has one that we can open."""


def import_folder(
    source: Path,
    root: Path,
    *,
    dtype: torch.dtype | None = None,
    extra_files: Callable[[Settings, TokenizerFacts], Mapping[str, bytes]] = lambda model, tokenizer: {},
) -> Imported:
    """Write `source` as the release checkpoint under `root`; tensors keep their dtype unless one is given.

    `extra_files`, of the settings and of what `describe_tokenizer` says, are added to the checkpoint. Raises
    ValueError with everything that cannot be expressed or does not fit, before anything is written.
    """
    folder = ModelFolder(source)
    family = family_of(folder.config)
    folder.complete_names(family.base)
    model, carried = family.read_config(folder.config)
    rows = family.rows(model)
    problems = _problems(folder, rows, tied=not model["untie_embeddings_and_output_weights"])
    if problems:
        raise ValueError("\n".join([f"{source} does not hold the tensors that its config.json asks for:", *problems]))
    if (root / TRACKER).is_file() and (root / TRACKER).read_text().strip() != RELEASE:
        raise ValueError(f"--save {root} holds the checkpoints of a training; give a new folder for the converted one")
    parts = [_part(folder, row, dtype) for row in rows]
    tokenizer = tokenizer_files(source)
    generation = source / "generation_config.json"
    scalars = {  # no optimizer_step: there is no optimizer to continue
        "iteration": 0,
        "consumed_train_samples": 0,
        "parallel": {},
        "model": {name: value for name, value in model.items() if name != "vocab_size"},
        "vocab_size": model["vocab_size"],
        "tokenizer": describe_tokenizer(tokenizer),
        "huggingface": {
            "config": carried,
            "generation_config": read_json(generation) if generation.is_file() else None,
        },
    }
    files = {
        **{f"tokenizer/{name}": data for name, data in tokenizer.items()},
        **extra_files(model, describe_tokenizer(tokenizer)),
    }
    directory = save_parts(root, None, parts, scalars, files, Group(name="world", ranks=(0,), rank=0))
    return Imported(
        directory=directory,
        model=model,
        tensors=len(parts),
        parameters=sum(torch.Size(row.shape).numel() for row in rows),
        tokenizer=describe_tokenizer(tokenizer),
    )


def _problems(folder: ModelFolder, rows: list[Row], *, tied: bool) -> list[str]:
    """Tensors that are missing, left over, or of another shape than the config says."""
    wanted = {name: shape for row in rows for name, shape in zip(row.theirs, row.their_shapes, strict=True)}
    [word] = next(row.theirs for row in rows if row.ours == "embedding.word.weight")
    problems = [f"  missing: {name}" for name in wanted if name not in folder.tensors]
    for name, held in folder.tensors.items():
        if name in wanted:
            if held.shape != wanted[name]:
                problems.append(f"  wrong shape: {name} is {held.shape}, and config.json makes it {wanted[name]}")
        elif tied and name == "lm_head.weight":
            if word in folder.tensors and not torch.equal(folder.tensor(name), folder.tensor(word)):
                problems.append(f"  unexpected: {name} differs from the embedding that config.json ties it to")
        elif not name.endswith(_FOLLOWING):
            problems.append(f"  unexpected: {name}")
    return problems


def _part(folder: ModelFolder, row: Row, dtype: torch.dtype | None) -> Part:
    def produce() -> Tensor:
        tensors = [folder.tensor(name) for name in row.theirs]
        return row.join([tensor if dtype is None else tensor.to(dtype) for tensor in tensors])

    stored = {folder.tensors[name].dtype for name in row.theirs}
    if dtype is None and len(stored) > 1:
        raise ValueError(f"{', '.join(row.theirs)} have different dtypes, {stored}: give one for all with --dtype")
    return Part(
        name=row.ours,
        global_shape=row.shape,
        box=tuple((0, n) for n in row.shape),
        dtype=dtype or stored.pop(),
        produce=produce,
    )
