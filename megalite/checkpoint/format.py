"""What a checkpoint is on disk: names of folders and files, and the index that says where each tensor lies.

    SAVE/latest_checkpointed_iteration.txt     an iteration, or `release`
    SAVE/iter_0000123/index.json               tensors -> boxes -> files; file sizes and hashes; scalars
    SAVE/iter_0000123/model-00000.safetensors  what rank 0 wrote of the model
    SAVE/iter_0000123/optimizer-00000.safetensors
    SAVE/iter_0000123/config.toml, tokenizer/  whatever else came along

A folder with a final name is whole. While it is written it has a name that starts with a dot.
"""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from megalite.checkpoint.disk import replaced_folder
from megalite.checkpoint.tensor_file import CODES, FileRecord
from megalite.shard import Box

FORMAT = 1
INDEX = "index.json"
TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in CODES}
"""What an index may call a dtype."""


class CheckpointMissing(ValueError):
    """Nothing was ever saved where a checkpoint was looked for."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Where one box of a tensor lies."""

    box: Box
    file: str
    key: str


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """One logical tensor: its dtype as torch names it, its global shape and its pieces."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of index.json."""

    tensors: dict[str, TensorRecord]
    files: dict[str, FileRecord]
    scalars: dict[str, Any]


def folder_name(iteration: int | None) -> str:
    """The folder of an iteration, in its root; None is the release: weights that came from elsewhere."""
    return RELEASE if iteration is None else f"iter_{iteration:07d}"


def is_optimizer(name: str) -> bool:
    """Whether a tensor is the optimizer's state rather than the model's."""
    return name.startswith("optimizer.")


def encode_index(index: Index) -> bytes:
    """The text of index.json."""
    tensors = {
        name: {
            "dtype": record.dtype,
            "shape": record.shape,
            "boxes": [{"box": piece.box, "file": piece.file, "key": piece.key} for piece in record.pieces],
        }
        for name, record in index.tensors.items()
    }
    files = {name: {"bytes": record.bytes, "sha256": record.sha256} for name, record in index.files.items()}
    content = {"format": FORMAT, "scalars": index.scalars, "files": files, "tensors": tensors}
    return (json.dumps(content, indent=1) + "\n").encode()


def read_index(directory: Path) -> Index:
    """The index of a checkpoint folder; its own consistency is checked, not the files that it names."""
    path = directory / INDEX
    if not path.is_file():
        raise CheckpointMissing(
            f"{directory} is not a complete checkpoint: it has no {INDEX}, which is written last. "
            f"It holds: {_listing(directory)}."
        )
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, and this megalite reads {FORMAT}")
        index = Index(
            tensors={name: _tensor_record(name, raw) for name, raw in content["tensors"].items()},
            files={_inside(name): FileRecord(**raw) for name, raw in content["files"].items()},
            scalars=content["scalars"],
        )
        unlisted = {p.file for t in index.tensors.values() for p in t.pieces} - set(index.files)
        if unlisted:
            raise ValueError(f"it places tensors in files that it does not list: {sorted(unlisted)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged or is not a megalite index: {error}") from error
    return index


def _tensor_record(name: str, raw: dict[str, Any]) -> TensorRecord:
    shape = tuple(raw["shape"])
    pieces = []
    for box in raw["boxes"]:
        ranges = tuple((start, stop) for start, stop in box["box"])
        if len(ranges) != len(shape) or any(not 0 <= a <= b <= n for (a, b), n in zip(ranges, shape, strict=True)):
            raise ValueError(f"a box of {name}, {ranges}, does not lie in its shape {shape}")
        pieces.append(Piece(box=ranges, file=_inside(box["file"]), key=box["key"]))
    if raw["dtype"] not in DTYPES:
        raise ValueError(f"{name} has the unknown dtype {raw['dtype']!r}")
    return TensorRecord(dtype=raw["dtype"], shape=shape, pieces=tuple(pieces))


def _inside(name: str) -> str:
    """A file name from an index, refused if it leads out of the checkpoint's folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ValueError(f"the file name {name!r} leads out of the folder")
    return name


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
        if whole:
            raise ValueError(f"{root} holds {', '.join(whole)}, but {TRACKER} is gone. Name one with --ckpt-step.")
        raise CheckpointMissing(
            f"there is no checkpoint in {root}: it has no {TRACKER} and no {INDEX}. It holds: {_listing(root)}."
        )
    final = root / name
    for candidate in (final, replaced_folder(final)):  # the second, if a save that replaced it was cut off
        if (candidate / INDEX).is_file():
            return candidate
    asked = f"{root / TRACKER} names {name}" if step is None else f"iteration {step} was asked for"
    raise ValueError(f"{asked}, but {final} is not a complete checkpoint. {root} holds: {_listing(root)}.")


def _listing(folder: Path) -> str:
    """The names in a folder, for an error."""
    if not folder.exists():
        return "nothing, as it does not exist"
    if not folder.is_dir():
        return "nothing, as it is a file"
    names = sorted(entry.name for entry in folder.iterdir())
    return (", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")) or "nothing"
