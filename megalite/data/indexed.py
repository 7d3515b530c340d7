"""Reader of Megatron's token files: PREFIX.bin, tokens back to back, and PREFIX.idx, where each sequence lies.

The .idx, little-endian and without padding: magic, uint64 version, uint8 dtype code, uint64 sequences S, uint64 entries
D of the document array; then int32 lengths in tokens [S], int64 byte offsets in the .bin [S], and int64 document
boundaries [D]: indices of sequences, the first 0 and the last S. An empty document is a boundary without a sequence.
"""

import os
import struct
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
VERSION = 1
DTYPES: dict[int, Any] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
CODES = {np.dtype(dtype): code for code, dtype in DTYPES.items()}


def token_dtype(vocab_size: int) -> np.dtype:
    """The dtype that holds every id below vocab_size; Megatron goes to 32 bits from 65500 on, not from 65537."""
    return np.dtype(np.uint16 if vocab_size < 65500 else np.int32)


def bin_path(prefix: str | Path) -> Path:
    """The file of tokens."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """The file that says where each sequence lies."""
    return Path(f"{prefix}.idx")


class IndexedCorpus:
    """The sequences of a PREFIX.bin/.idx pair, read where they lie: opening costs no memory, whatever the size.

    ValueError names the file and what is wrong with it.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        bin_file, idx_file = bin_path(prefix), idx_path(prefix)
        for path in (idx_file, bin_file):
            if not path.is_file():
                raise ValueError(
                    f"there is no file {path}. A data prefix is the path of a .bin/.idx pair without its ending, "
                    f"such as data/my_text_document; tools/preprocess_data.py makes one."
                )
        self.dtype, sequences, boundaries = _read_header(idx_file)
        parts = {"lengths": ("<i4", sequences), "offsets": ("<i8", sequences), "documents": ("<i8", boundaries)}
        arrays, position = {}, HEADER.size
        for name, (dtype, count) in parts.items():
            # Not np.memmap(dtype=...): the arrays begin at odd offsets, and an empty one cannot be mapped.
            size = count * np.dtype(dtype).itemsize
            arrays[name] = np.memmap(idx_file, np.uint8, "r")[position : position + size].view(dtype)
            position += size
        self.lengths: np.ndarray = arrays["lengths"]
        """Tokens in each sequence, int32 [S]."""
        self.offsets: np.ndarray = arrays["offsets"]
        """Where each sequence begins in the .bin in bytes, int64 [S]."""
        self.documents: np.ndarray = arrays["documents"]
        """Document boundaries as indices of sequences, int64 [documents + 1]."""
        if self.documents[0] != 0 or self.documents[-1] != sequences:
            raise ValueError(
                f"{idx_file}: the documents run from sequence {self.documents[0]} to {self.documents[-1]}, but there "
                f"are {sequences} sequences: it was cut, merged or written wrongly. Preprocess the corpus again."
            )
        self.bytes = bin_file.stat().st_size
        end = int(self.offsets[-1]) + int(self.lengths[-1]) * self.dtype.itemsize if sequences else 0
        if not 0 <= end <= self.bytes:
            raise ValueError(
                f"{bin_file} has {self.bytes} bytes, but {idx_file} places its last sequence up to byte {end}: "
                f"one of them was cut or is of another corpus. Preprocess the corpus again."
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.get(index)

    def get(self, index: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """`length` tokens (None: all) of a sequence from token `offset` on, in the dtype of the file; a view of it."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.prefix} has {len(self)} sequences; there is none with number {index}")
        whole = int(self.lengths[index])
        length = whole - offset if length is None else length
        assert 0 <= offset <= offset + length <= whole, (index, offset, length, whole)
        begin = int(self.offsets[index])
        end = begin + whole * self.dtype.itemsize
        if not 0 <= begin <= end <= self.bytes:
            raise ValueError(
                f"{idx_path(self.prefix)} places sequence {index} at bytes {begin} to {end} of {self.bytes}: "
                f"the file is damaged. Preprocess the corpus again."
            )
        begin += offset * self.dtype.itemsize
        return self._tokens[begin : begin + length * self.dtype.itemsize].view(self.dtype)

    @cached_property
    def _tokens(self) -> np.ndarray:
        return np.memmap(bin_path(self.prefix), np.uint8, "r") if self.bytes else np.empty(0, np.uint8)

    @property
    def fingerprint(self) -> dict[str, int]:
        """Sizes and time of last change: another corpus under the same name has another one."""
        idx = os.stat(idx_path(self.prefix))
        return {"idx_bytes": idx.st_size, "idx_mtime_ns": idx.st_mtime_ns, "bin_bytes": self.bytes}


def _read_header(path: Path) -> tuple[np.dtype, int, int]:
    """The dtype of the tokens, the number of sequences, and the number of document boundaries."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise ValueError(f"{path} is not a Megatron index: it begins with {head[: len(MAGIC)]!r}, not {MAGIC!r}.")
    if len(head) < HEADER.size:
        raise ValueError(f"{path} was cut: its {len(head)} bytes are not even the header of {HEADER.size}.")
    _, version, code, sequences, boundaries = HEADER.unpack(head)
    if version != VERSION:
        raise ValueError(f"{path} has version {version}; only version {VERSION} can be read.")
    if code not in DTYPES:
        raise ValueError(
            f"{path} has the unknown dtype code {code}; the known ones are {min(DTYPES)} to {max(DTYPES)}."
        )
    dtype = np.dtype(DTYPES[code])
    if dtype.kind == "f":
        raise ValueError(f"{path} holds {dtype} values (dtype code {code}), which are not token ids.")
    size, expected = path.stat().st_size, HEADER.size + 12 * sequences + 8 * boundaries
    # Multimodal data has one more byte for each sequence, its mode; nothing in the header says so.
    if boundaries < 1 or size not in (expected, expected + sequences):
        raise ValueError(
            f"{path} has {size} bytes; {sequences} sequences and {boundaries} document boundaries take {expected}: "
            f"it was cut or overwritten. Preprocess the corpus again."
        )
    return dtype, sequences, boundaries
