"""Where checkpoints lie: names of folders and files, and which one a folder stands for.

    SAVE/latest_checkpointed_iteration.txt     an iteration, or `release`
    SAVE/iter_0000123/index.json               tensors -> boxes -> files; file sizes and checksums; scalars
    SAVE/iter_0000123/model-00000.safetensors  what rank 0 wrote of the model
    SAVE/iter_0000123/optimizer-00000.safetensors
    SAVE/iter_0000123/config.toml, tokenizer/  whatever else came along

A folder with a final name is whole. While it is written it has a name that starts with a dot.
"""

from pathlib import Path

from megalite.checkpoint.disk import replaced_folder

INDEX = "index.json"
TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"


class CheckpointMissing(ValueError):
    """Nothing was ever saved where a checkpoint was looked for."""


def folder_name(iteration: int | None) -> str:
    """The folder of an iteration, in its root; None is the release: weights that came from elsewhere."""
    return RELEASE if iteration is None else f"iter_{iteration:07d}"


def find(root: Path, step: int | None = None) -> Path:
    """The checkpoint folder that `root` stands for: the one it is, that of iteration `step`, or the one last published.

    A higher iteration that the tracker does not name is not chosen: only the tracker says that a save was finished.
    Raises CheckpointMissing where nothing was ever saved, and ValueError where something was and is not whole.
    """
    if step is None and (root / INDEX).is_file():
        return root
    if step is not None:
        name = folder_name(step)
    elif (root / TRACKER).is_file():
        text = (root / TRACKER).read_text().strip()
        if text != RELEASE and not text.isdecimal():
            raise ValueError(f"{root / TRACKER} must hold an iteration or `{RELEASE}`, not {text[:80]!r}")
        name = folder_name(None if text == RELEASE else int(text))
    else:
        whole = sorted(folder.parent.name for folder in root.glob(f"iter_*/{INDEX}"))
        if len(whole) == 1:  # a first save that was cut off before it was named
            return root / whole[0]
        if whole:
            raise ValueError(f"{root} holds {', '.join(whole)}, but {TRACKER} is gone. Name one with --ckpt-step.")
        raise CheckpointMissing(
            f"there is no checkpoint in {root}: it has no {TRACKER} and no {INDEX}. It holds: {listing(root)}."
        )
    final = root / name
    for candidate in (final, replaced_folder(final)):  # the second, if a save that replaced it was cut off
        if (candidate / INDEX).is_file():
            return candidate
    asked = f"{root / TRACKER} names {name}" if step is None else f"iteration {step} was asked for"
    raise ValueError(f"{asked}, but {final} is not a complete checkpoint. {root} holds: {listing(root)}.")


def is_model_folder(root: Path) -> bool:
    """Whether `root` is a folder of Hugging Face rather than one of checkpoints."""
    return (root / "config.json").is_file() and not any((root / name).is_file() for name in (INDEX, TRACKER))


def listing(folder: Path) -> str:
    """The names in a folder, for an error."""
    if not folder.exists():
        return "nothing, as it does not exist"
    if not folder.is_dir():
        return "nothing, as it is a file"
    names = sorted(entry.name for entry in folder.iterdir())
    return (", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")) or "nothing"
