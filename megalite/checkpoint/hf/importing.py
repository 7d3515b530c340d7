"""From a Hugging Face folder to a release checkpoint."""

from pathlib import Path

import torch

from megalite.checkpoint.hf.fields import read_json
from megalite.checkpoint.hf.opening import open_folder
from megalite.checkpoint.hf.tokenizer import tokenizer_files
from megalite.checkpoint.release import ExtraFiles, Imported, write_release


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
    opened = open_folder(source)
    generation = source / "generation_config.json"
    origin = {"config": opened.carried, "generation_config": read_json(generation) if generation.is_file() else None}
    return write_release(
        root,
        opened.tensors,
        opened.rows,
        model=opened.model,
        origin={"huggingface": origin},
        tokenizer=tokenizer_files(source),
        dtype=dtype,
        extra_files=extra_files,
    )
