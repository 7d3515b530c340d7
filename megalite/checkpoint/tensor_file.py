"""Writing safetensors files, one tensor in memory at a time; the safetensors library reads them.

The format (https://github.com/huggingface/safetensors): the header's length in 8 bytes, a JSON header with dtype,
shape and offsets of each tensor, then the data without holes.
"""

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megalite.checkpoint.checksum import checksum, digest
from megalite.checkpoint.disk import begin_flush

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
DTYPES_BY_CODE = {code: dtype for dtype, code in CODES.items()}

_BATCH = 1 << 22  # bytes that are written at once, few enough to be in a cache when the checksum reads them
_MOST = 1000  # buffers that the system takes at once


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
    checksum: str


def write_tensors(path: Path, slots: Sequence[Entry], tensors: Iterable[Tensor]) -> FileRecord:
    """Write the tensors, one for each slot and in their order, and wait until they are on the disk.

    Slots of wider dtypes should come first: then every tensor is aligned. Tensors may lie on any device and in any
    memory order; one that is not contiguous on the CPU is copied when its turn comes. The checksum is computed while
    the disk is at work.
    """
    seen, size = digest(), 0
    with open(path, "wb", buffering=0) as file:
        for batch in _batches(_blocks(slots, tensors)):
            written = _write(file.fileno(), batch)
            begin_flush(file.fileno(), size, written)
            size += written
            for data in batch:
                seen.update(data)
        os.fsync(file.fileno())
    return FileRecord(bytes=size, checksum=checksum(seen))


def _write(handle: int, batch: Sequence[memoryview]) -> int:
    """Append all of a batch to a file; its bytes. The system may take a part at a time."""
    left, total = deque(batch), 0
    while left:
        written = os.writev(handle, left)
        total += written
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if written:
            left[0] = left[0][written:]
    return total


def _batches(blocks: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """The bytes of all blocks, some small ones or a part of a large one at a time."""
    batch: list[memoryview] = []
    room = _BATCH
    for block in blocks:
        for start in range(0, len(block), _BATCH):
            piece = block[start : start + _BATCH]
            if len(piece) > room or len(batch) == _MOST:
                yield batch
                batch, room = [], _BATCH
            batch.append(piece)
            room -= len(piece)
    if batch:
        yield batch


def _blocks(slots: Sequence[Entry], tensors: Iterable[Tensor]) -> Iterator[memoryview]:
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
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for slot, tensor in zip(slots, tensors, strict=True):
        assert tensor.dtype == slot.dtype and tensor.shape == slot.shape, (slot, tensor.dtype, tensor.shape)
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def record_bytes(data: bytes) -> FileRecord:
    """The record of a file with this content."""
    seen = digest()
    seen.update(memoryview(data))
    return FileRecord(bytes=len(data), checksum=checksum(seen))
