"""From a checkpoint to a Hugging Face folder, one tensor in memory at a time."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megalite.checkpoint.boxes import slices, whole
from megalite.checkpoint.disk import begin_folder, publish_folder, write_file
from megalite.checkpoint.format import DTYPES, Index, is_optimizer, read_index
from megalite.checkpoint.hf.families import family_for
from megalite.checkpoint.hf.folder import WEIGHTS, WEIGHTS_INDEX
from megalite.checkpoint.hf.rows import Row
from megalite.checkpoint.hf.tokenizer import EXPORTED_FILES, ExportedTokenizer, export_tokenizer
from megalite.checkpoint.load import read_tensor
from megalite.checkpoint.strict import expect
from megalite.checkpoint.tensor_file import Entry, write_tensors

_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A Hugging Face folder that was made of a checkpoint."""

    architecture: str
    tensors: int
    parameters: int
    files: tuple[str, ...]
    tokenizer: str
    """What became of the tokenizer, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class _File:
    """One file of weights: the rows that it holds, and the place of each tensor."""

    name: str
    rows: tuple[Row, ...]
    slots: tuple[Entry, ...]


def export_folder(
    checkpoint: Path,
    target: Path,
    *,
    family: str | None = None,
    dtype: torch.dtype | None = None,
    max_file_bytes: int = 5_000_000_000,
) -> Exported:
    """Write a checkpoint folder as a Hugging Face one; tensors keep their dtype unless one is given.

    `family` is the model_type to write; unset, that from which the checkpoint was imported, or the first that fits.

    An earlier export in `target` is replaced as a whole; a folder with anything else in it is refused. Raises
    ValueError with every reason for which no family can express the model, or with all tensors that do not fit.
    """
    index = read_index(checkpoint)
    if "model" not in index.scalars or "vocab_size" not in index.scalars:
        raise ValueError(f"{checkpoint} does not say what model it holds: its scalars have no model or vocab_size")
    model = {**index.scalars["model"], "vocab_size": index.scalars["vocab_size"]}
    carried = index.scalars.get("huggingface", {})
    chosen, config = family_for(model, asked=family, brought=carried.get("config", {}).get("model_type"))
    rows = chosen.rows(model)
    weights = {name: record.shape for name, record in index.tensors.items() if not is_optimizer(name)}
    expect({row.ours: row.shape for row in rows}, weights, checkpoint)
    _check_target(target)
    config = {"architectures": [chosen.architecture], "model_type": chosen.model_type, **config}
    files = _share_out(index, rows, dtype, max_file_bytes)
    folder = begin_folder(target)
    try:
        for file in files:
            write_tensors(folder / file.name, file.slots, _tensors(checkpoint, index, file, dtype))
        tokenizer = export_tokenizer(checkpoint / "tokenizer", folder)
        _write_configs(folder, config, files, carried, tokenizer)
        publish_folder(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # there only if something failed
    return Exported(
        architecture=chosen.architecture,
        tensors=sum(len(file.slots) for file in files),
        parameters=sum(torch.Size(row.shape).numel() for row in rows),
        files=tuple(sorted(path.name for path in target.iterdir())),
        tokenizer=tokenizer.note,
    )


def _check_target(target: Path) -> None:
    """Only an export may be replaced."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ValueError(f"--save {target} is a file; give a folder")
    other = sorted(
        entry.name
        for entry in target.iterdir()
        if not (entry.name in EXPORTED_FILES or entry.match("model*.safetensors") or entry.name == WEIGHTS_INDEX)
    )
    if other:
        raise ValueError(
            f"--save {target} holds other things than an earlier export: {', '.join(other[:10])}. Give a new folder."
        )


def _share_out(index: Index, rows: Sequence[Row], dtype: torch.dtype | None, max_bytes: int) -> list[_File]:
    """The rows in files of at most `max_bytes`, a row that is larger alone in one; their tensors stay together."""

    def slots(row: Row) -> list[Entry]:
        kind = dtype or DTYPES[index.tensors[row.ours].dtype]
        return [Entry(key=part.name, dtype=kind, shape=part.shape) for part in row.parts]

    shares: list[list[tuple[Row, list[Entry]]]] = []
    filled = max_bytes
    # Wide dtypes first, so that all tensors of a file are aligned.
    for row, of_row in sorted(((row, slots(row)) for row in rows), key=lambda entry: -entry[1][0].dtype.itemsize):
        size = sum(slot.nbytes for slot in of_row)
        if not shares or filled + size > max_bytes:
            shares.append([])
            filled = 0
        shares[-1].append((row, of_row))
        filled += size
    return [
        _File(
            name=WEIGHTS if len(shares) == 1 else f"model-{number:05d}-of-{len(shares):05d}.safetensors",
            rows=tuple(row for row, _ in share),
            slots=tuple(slot for _, of_row in share for slot in of_row),
        )
        for number, share in enumerate(shares, start=1)
    ]


def _tensors(checkpoint: Path, index: Index, file: _File, dtype: torch.dtype | None) -> Iterator[Tensor]:
    """The tensors of a file, in its order."""
    for row in file.rows:
        tensor = read_tensor(checkpoint, row.ours, index)
        for part in row.parts:
            theirs = part.back(tensor[slices(part.box, whole(row.shape))])
            yield theirs if dtype is None else theirs.to(dtype)


def _write_configs(
    folder: Path,
    config: dict[str, Any],
    files: Sequence[_File],
    carried: dict[str, Any],
    tokenizer: ExportedTokenizer,
) -> None:
    """The index of several files, and the two configs. What an import brought along is kept; special ids that it did
    not bring are the tokenizer's."""
    slots = [(slot, file.name) for file in files for slot in file.slots]
    if len(files) > 1:
        total = sum(slot.nbytes for slot, _ in slots)
        weight_map = {slot.key: name for slot, name in slots}
        _write_json(folder / WEIGHTS_INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    ids = {role: tokenizer.ids.get(role) for role in _ROLES}
    brought = {key: value for key, value in carried.get("config", {}).items() if key not in config}
    dtype = str(Counter(slot.dtype for slot, _ in slots).most_common(1)[0][0]).removeprefix("torch.")
    _write_json(folder / "generation_config.json", carried.get("generation_config") or ids)
    # Both names of the dtype: transformers read torch_dtype before version 5.
    _write_json(folder / "config.json", {**config, **ids, **brought, "dtype": dtype, "torch_dtype": dtype})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_file(path, (json.dumps(content, indent=2) + "\n").encode())
