"""The index of a checkpoint: where each tensor lies, box by box; the files with size and checksum; and scalars."""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from megalite.checkpoint.checksum import digest
from megalite.checkpoint.place import INDEX, CheckpointMissing, listing
from megalite.checkpoint.tensor_file import CODES, FileRecord
from megalite.shard import Box

FORMAT = 1
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in CODES}
"""What an index may call a dtype."""


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
    files = {name: {"bytes": record.bytes, "checksum": record.checksum} for name, record in index.files.items()}
    content = {"format": FORMAT, "scalars": index.scalars, "files": files, "tensors": tensors}
    return (json.dumps(content, indent=1) + "\n").encode()


def read_index(directory: Path) -> Index:
    """The index of a checkpoint folder; its own consistency is checked, not the files that it names."""
    path = directory / INDEX
    if not path.is_file():
        raise CheckpointMissing(
            f"{directory} is not a complete checkpoint: it has no {INDEX}, which is written last. "
            f"It holds: {listing(directory)}."
        )
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, and this megalite reads {FORMAT}")
        index = Index(
            tensors={name: _tensor_record(name, raw) for name, raw in content["tensors"].items()},
            files={_inside(name): _file_record(raw) for name, raw in content["files"].items()},
            scalars=content["scalars"],
        )
        unlisted = {p.file for t in index.tensors.values() for p in t.pieces} - set(index.files)
        if unlisted:
            raise ValueError(f"it places tensors in files that it does not list: {sorted(unlisted)}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or is not a megalite index: {error}") from error
    return index


def _file_record(raw: dict[str, Any]) -> FileRecord:
    checksum = raw["checksum"] if "checksum" in raw else f"sha256:{raw['sha256']}"  # as it was written before
    digest(checksum.partition(":")[0])
    return FileRecord(bytes=raw["bytes"], checksum=checksum)


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
