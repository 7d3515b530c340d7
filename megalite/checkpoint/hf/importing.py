"""From a Hugging Face folder to a release checkpoint."""

from pathlib import Path

import torch

from megalite.checkpoint.hf.families import family_of
from megalite.checkpoint.hf.folder import ModelFolder, read_json
from megalite.checkpoint.hf.tokenizer import tokenizer_files
from megalite.checkpoint.release import ExtraFiles, Imported, check_tensors, write_release

_FOLLOWING = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Tensors in old files that follow from the config: rotary frequencies, and GPT-2's causal mask."""


def import_folder(
    source: Path,
    root: Path,
    *,
    dtype: torch.dtype | None = None,
    extra_files: ExtraFiles = lambda model, tokenizer: {},
) -> Imported:
    """Write `source` as the release checkpoint under `root`; tensors keep their dtype unless one is given.

    Raises ValueError with everything that cannot be expressed or does not fit, before anything is written.
    """
    folder = ModelFolder(source)
    family = family_of(folder.config)
    folder.complete_names(family.base)
    model, carried = family.read_config(folder.config)
    rows = family.rows(model)
    [word] = next(row.theirs for row in rows if row.ours == "embedding.word.weight")
    copies = {} if model["untie_embeddings_and_output_weights"] else {"lm_head.weight": word}
    check_tensors(source, folder.tensors, rows, copies=copies, ignored=_FOLLOWING)
    generation = source / "generation_config.json"
    origin = {"config": carried, "generation_config": read_json(generation) if generation.is_file() else None}
    return write_release(
        root,
        folder.tensors,
        rows,
        model=model,
        origin={"huggingface": origin},
        tokenizer=tokenizer_files(source),
        dtype=dtype,
        extra_files=extra_files,
    )
