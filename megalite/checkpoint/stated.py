"""What a checkpoint or a folder of Hugging Face says of its model: read without torch, before settings are checked."""

import json
from pathlib import Path
from typing import Any

from megalite.checkpoint.hf.families import family_of
from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.fields import read_json
from megalite.checkpoint.place import INDEX, CheckpointMissing, find, is_model_folder


def stated_model(load: str | None, step: int | None, pretrained: str | None) -> tuple[Path, dict[str, Any]]:
    """What a run would load, and the settings of its model under the names of their flags; with `vocab_size`.

    Raises ValueError or OSError where nothing is there, or it does not say.
    """
    missing = "neither --load nor --pretrained-checkpoint names a folder"
    for root, of_step in ((load, step), (pretrained, None)):
        if root is None:
            continue
        if is_model_folder(Path(root)):
            return Path(root), of_config(Path(root) / "config.json")
        try:
            return _of_checkpoint(find(Path(root), of_step))
        except CheckpointMissing as error:
            missing = str(error)
    raise ValueError(missing)


def of_config(path: Path) -> Settings:
    """The settings that a config.json of Hugging Face comes to; ValueError where we cannot express it."""
    config = read_json(path)
    return family_of(config).read_config(config)[0]


def _of_checkpoint(directory: Path) -> tuple[Path, dict[str, Any]]:
    try:
        scalars = json.loads((directory / INDEX).read_text())["scalars"]
        return directory, {**scalars["model"], "vocab_size": scalars["vocab_size"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory / INDEX} does not say what model it holds: {error!r}") from None
