"""Reader of Megatron's token files: PREFIX.bin, tokens back to back, and PREFIX.idx, where each sequence lies.

The .idx, little-endian and without padding: magic, uint64 version, uint8 dtype code, uint64 sequences S, uint64 entries
D of the document array; then int32 lengths in tokens [S], int64 byte offsets in the .bin [S], and int64 document
boundaries [D]: indices of sequences, the first 0 and the last S. An empty document is a boundary without a sequence.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from megalite.data.storage import Storage, open_storage

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

    Behind a URL the .idx is held in memory, and the .bin is read range by range. ValueError names the file and what is
    wrong with it.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        idx_file, bin_file = f"{prefix}.idx", f"{prefix}.bin"
        self._idx, self._bin = _open(idx_file), _open(bin_file)
        self.dtype, sequences, boundaries = _read_header(idx_file, self._idx)
        parts = {"lengths": ("<i4", sequences), "offsets": ("<i8", sequences), "documents": ("<i8", boundaries)}
        # Not np.memmap(dtype=...): the arrays begin at odd offsets.
        index, arrays, position = self._idx.read(0, self._idx.size), {}, HEADER.size
        for name, (dtype, count) in parts.items():
            size = count * np.dtype(dtype).itemsize
            arrays[name] = index[position : position + size].view(dtype)
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
        if sequences and self.lengths.min() < 0:
            raise ValueError(
                f"{idx_file} says that sequence {self.lengths.argmin()} has {self.lengths.min()} tokens: the file is "
                f"damaged. Preprocess the corpus again."
            )
        self.bytes = self._bin.size
        self._row = self._bin.row(self.dtype)
        end = int(self.offsets[-1]) + int(self.lengths[-1]) * self.dtype.itemsize if sequences else 0
        if not 0 <= end <= self.bytes:
            raise ValueError(
                f"{bin_file} has {self.bytes} bytes, but {idx_file} places its last sequence up to byte {end}: "
                f"one of them was cut or is of another corpus. Preprocess the corpus again."
            )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Of all sequences."""
        return int(self.lengths.sum(dtype=np.int64))

    def __getitem__(self, index: int) -> np.ndarray:
        return self.get(index)

    def get(self, index: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """`length` tokens (None: all) of a sequence from token `offset` on, in the dtype of the file; a view of it."""
        if not 0 <= index < len(self.lengths):
            raise IndexError(f"{self.prefix} has {len(self)} sequences; there is none with number {index}")
        whole, begin, width = self.lengths.item(index), self.offsets.item(index), self.dtype.itemsize
        length = whole - offset if length is None else length
        assert 0 <= offset <= offset + length <= whole, (index, offset, length, whole)
        if not 0 <= begin <= begin + whole * width <= self.bytes:
            raise ValueError(
                f"{self.prefix}.idx places sequence {index} at bytes {begin} to {begin + whole * width} of "
                f"{self.bytes}: the file is damaged. Preprocess the corpus again."
            )
        begin += offset * width
        if self._row is not None and not begin % width:
            begin //= width
            return self._row[begin : begin + length]
        return self._bin.read(begin, begin + length * width).view(self.dtype)

    def run(self, sequences: range) -> np.ndarray:
        """The tokens of consecutive sequences in one row; a view of the file where they lie there so."""
        here = slice(sequences.start, sequences.stop)
        if not sequences:
            return np.empty(0, self.dtype)
        ends = np.cumsum(self.lengths[here], dtype=np.int64) * self.dtype.itemsize + int(self.offsets[here.start])
        if not np.array_equal(ends[:-1], self.offsets[here][1:]):
            return np.concatenate(list(map(self.get, sequences)))
        begin, end = int(self.offsets[here.start]), int(ends[-1])
        if not 0 <= begin <= end <= self.bytes:
            self.get(sequences.start), self.get(sequences.stop - 1)  # One of them says what is wrong.
        return self._bin.read(begin, end).view(self.dtype)

    def place(self, index: int) -> str:
        """Where a sequence is, for messages: its document, and its own number where documents have several."""
        document = int(np.searchsorted(self.documents, index, side="right")) - 1
        return f"document {document}" + f" (sequence {index})" * (document != index)

    @property
    def fingerprint(self) -> dict[str, int]:
        """Sizes and time of last change: another corpus under the same name has another one."""
        return {**{f"idx_{name}": value for name, value in self._idx.version.items()}, "bin_bytes": self.bytes}


def _open(path: str) -> Storage:
    try:
        return open_storage(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ValueError(
            f"there is no file {path}. A data prefix is the path of a .bin/.idx pair without its ending, "
            f"such as data/my_text_document; tools/preprocess_data.py makes one."
        ) from None


def _read_header(name: str, idx: Storage) -> tuple[np.dtype, int, int]:
    """The dtype of the tokens, the number of sequences, and the number of document boundaries."""
    head = idx.read(0, min(HEADER.size, idx.size)).tobytes()
    if not head.startswith(MAGIC):
        raise ValueError(f"{name} is not a Megatron index: it begins with {head[: len(MAGIC)]!r}, not {MAGIC!r}.")
    if len(head) < HEADER.size:
        raise ValueError(f"{name} was cut: its {len(head)} bytes are not even the header of {HEADER.size}.")
    _, version, code, sequences, boundaries = HEADER.unpack(head)
    if version != VERSION:
        raise ValueError(f"{name} has version {version}; only version {VERSION} can be read.")
    if code not in DTYPES:
        raise ValueError(
            f"{name} has the unknown dtype code {code}; the known ones are {min(DTYPES)} to {max(DTYPES)}."
        )
    dtype = np.dtype(DTYPES[code])
    if dtype.kind == "f":
        raise ValueError(f"{name} holds {dtype} values (dtype code {code}), which are not token ids.")
    expected = HEADER.size + 12 * sequences + 8 * boundaries
    # Multimodal data has one more byte for each sequence, its mode; nothing in the header says so.
    if boundaries < 1 or idx.size not in (expected, expected + sequences):
        raise ValueError(
            f"{name} has {idx.size} bytes; {sequences} sequences and {boundaries} document boundaries take {expected}: "
            f"it was cut or overwritten. Preprocess the corpus again."
        )
    return dtype, sequences, boundaries
