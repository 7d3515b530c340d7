"""Writing safetensors files, one tensor in memory at a time; the safetensors library reads them.

The format (https://github.com/huggingface/safetensors): the header's length in 8 bytes, a JSON header with dtype,
shape and offsets of each tensor, then the data without holes.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""How safetensors names a dtype."""

_CHUNK = 1 << 24  # bytes; small enough to be hashed while they are still in the cache


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The place of one tensor in a file."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """What a file must be to be the one that was written."""

    bytes: int
    sha256: str


def write_tensors(path: Path, slots: Sequence[Entry], tensors: Iterable[Tensor]) -> FileRecord:
    """Write the tensors, one for each slot and in their order, and wait until they are on the disk.

    Slots of wider dtypes should come first: then every tensor is aligned. Tensors may lie on any device and in any
    memory order; one that is not contiguous on the CPU is copied when its turn comes.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for data in _blocks(slots, tensors):
            for start in range(0, len(data), _CHUNK):
                chunk = data[start : start + _CHUNK]
                file.write(chunk)
                digest.update(chunk)
            size += len(data)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(bytes=size, sha256=digest.hexdigest())


def _blocks(slots: Sequence[Entry], tensors: Iterable[Tensor]) -> Iterable[bytes | memoryview]:
    """The header, then the bytes of each tensor."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for slot in slots:
        assert slot.key not in header, f"two tensors under the key {slot.key}"
        header[slot.key] = {
            "dtype": CODES[slot.dtype],
            "shape": list(slot.shape),
            "data_offsets": [offset, offset + slot.nbytes],
        }
        offset += slot.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for slot, tensor in zip(slots, tensors, strict=True):
        assert tensor.dtype == slot.dtype and tensor.shape == slot.shape, (slot, tensor.dtype, tensor.shape)
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def record_bytes(data: bytes) -> FileRecord:
    """The record of a file with this content."""
    return FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
