"""What a checkpoint holds, in lines for a reader, and in what it differs from another one."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from megalite.checkpoint.boxes import describe
from megalite.checkpoint.format import DTYPES, Index, TensorRecord
from megalite.checkpoint.load import read_tensor


def size_of(record: TensorRecord) -> int:
    """The bytes of a tensor."""
    return math.prod(record.shape) * DTYPES[record.dtype].itemsize


def tensors(directory: Path, index: Index, *, boxes: bool, norms: bool) -> Iterator[str]:
    """A line for each tensor; with `norms` each is read, one at a time, and what is not finite is counted."""
    width = max(map(len, index.tensors), default=0)
    for name, record in index.tensors.items():
        parts = f"  {len(record.pieces)} boxes" if len(record.pieces) > 1 else ""
        norm = f"  {_norm(directory, index, name)}" if norms else ""
        yield f"  {name:{width}}  {record.dtype:8}  {size_of(record):>14,} B  {list(record.shape)}{norm}{parts}"
        if boxes:
            yield from (f"    {describe(piece.box)}  {piece.file}: {piece.key}" for piece in record.pieces)


def _norm(directory: Path, index: Index, name: str) -> str:
    values = read_tensor(directory, name, index).to(torch.float64)
    wrong = int((~values.isfinite()).sum())
    return f"norm {values.norm().item():.6g}" + (f"  {wrong:,} of {values.numel():,} NOT FINITE" if wrong else "")


def tree(index: Index, depth: int) -> Iterator[str]:
    """The modules down to a depth, each with what is below it."""
    below: dict[tuple[str, ...], list[TensorRecord]] = {}
    for name, record in index.tensors.items():
        parts = tuple(name.split("."))
        for level in range(1, min(depth, len(parts)) + 1):
            below.setdefault(parts[:level], []).append(record)
    for path, records in below.items():
        elements, dtypes = sum(math.prod(r.shape) for r in records), sorted({r.dtype for r in records})
        count = f"{len(records)} tensors, " if len(records) > 1 else ""
        label = "  " * len(path) + path[-1]
        yield f"{label:40}  {count}{elements:,} elements, {sum(map(size_of, records)):,} B, {', '.join(dtypes)}"


def changed_facts(here: Index, there: Index) -> list[str]:
    """Scalars and tensors in which two checkpoints differ: `name: here | there`."""
    ours, theirs = _flat(here.scalars), _flat(there.scalars)
    lines = [
        f"  {name}: {ours.get(name, 'not there')} | {theirs.get(name, 'not there')}"
        for name in dict.fromkeys([*ours, *theirs])
        if ours.get(name, _ABSENT) != theirs.get(name, _ABSENT)
    ]
    for name in dict.fromkeys([*here.tensors, *there.tensors]):
        sides = [
            "not there" if record is None else f"{record.dtype} {list(record.shape)}"
            for record in (here.tensors.get(name), there.tensors.get(name))
        ]
        lines += [f"  {name}: {sides[0]} | {sides[1]}"] if sides[0] != sides[1] else []
    return lines


_ABSENT = object()


def _flat(scalars: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every scalar under its path."""
    found: dict[str, str] = {}
    for name, value in scalars.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: json.dumps(value)}
    return found


def changed_values(directory: Path, index: Index, other_directory: Path, other: Index) -> Iterator[str]:
    """Of the tensors that both hold in one shape, those with other values."""
    for name, record in index.tensors.items():
        if name not in other.tensors or other.tensors[name].shape != record.shape:
            continue
        here, there = (
            read_tensor(folder, name, of).to(torch.float64)
            for folder, of in ((directory, index), (other_directory, other))
        )
        differ = (here != there) & ~(here.isnan() & there.isnan())
        if differ.any():
            count, by, norm = int(differ.sum()), (here - there)[differ].norm().item(), here.norm().item()
            yield f"  {name}: {count:,} of {here.numel():,} elements, by {by:.6g} of a norm of {norm:.6g}"
