"""Writer of Megatron's token files, in constant memory; a pair appears whole or not at all."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from megalite.data.indexed import CODES, HEADER, MAGIC, VERSION, bin_path, idx_path

CHUNK = 1 << 20
"""Lengths turned into offsets at a time: the writer's memory does not grow with the corpus."""


class IndexedWriter:
    """Writes PREFIX.bin and PREFIX.idx document by document: `with IndexedWriter(prefix, dtype) as writer: ...`.

    Everything goes to PREFIX.*.partial first. Leaving the block without an error puts the pair in its place, the .idx
    last; an error removes the partial files; a kill leaves only them, and the next writer of this prefix starts over.
    ValueError when another process is writing the same prefix.
    """

    def __init__(self, prefix: str | Path, dtype: np.dtype) -> None:
        self.prefix, self.dtype = str(prefix), np.dtype(dtype)
        self.documents = self.tokens = self.entries = 0
        bin_path(prefix).parent.mkdir(parents=True, exist_ok=True)
        self._bin = _open_locked(Path(f"{prefix}.bin.partial"))
        # All that the .idx is made of, an int32 for each sequence: its length, negative where it goes on with the
        # document of the sequence before; 0 for a document without one.
        self._lengths = Path(f"{prefix}.lengths.partial").open("w+b")  # noqa: SIM115
        self._idx = Path(f"{prefix}.idx.partial").open("wb")  # noqa: SIM115

    def add_document(self, tokens: np.ndarray | list[int]) -> None:
        """Append a document of one sequence; without tokens it is a document boundary without a sequence."""
        self.add_documents(np.asarray(tokens), np.array([len(tokens)]))

    def add_documents(self, tokens: np.ndarray, lengths: np.ndarray, sequences: np.ndarray | None = None) -> None:
        """Append documents whose tokens lie back to back. ValueError when an id does not fit the dtype.

        `lengths` are those of sequences, of which each document has the number in `sequences`; None: one each.
        """
        assert tokens.ndim == 1 and len(tokens) == lengths.sum(), (tokens.shape, lengths)
        self.add_tokens(tokens)
        self.end_documents(lengths, sequences)

    def add_tokens(self, tokens: np.ndarray) -> None:
        """Append tokens of a document too long to be held, until `end_document` or `drop`."""
        limit = np.iinfo(self.dtype)
        fits = tokens.dtype == self.dtype or not tokens.size
        if not fits and not (limit.min <= tokens.min() and tokens.max() <= limit.max):
            raise ValueError(
                f"{self.prefix}: token ids {tokens.min()} to {tokens.max()} do not fit {self.dtype} "
                f"({limit.min} to {limit.max})."
            )
        self._bin.write(np.ascontiguousarray(tokens, self.dtype).data)

    def end_document(self, lengths: np.ndarray) -> None:
        """The last tokens are a document whose sequences have these lengths, none of them 0."""
        self.end_documents(lengths, np.array([len(lengths)]))

    def drop(self, length: int) -> None:
        """Take back the last `length` tokens, which no document holds yet."""
        self._bin.flush()
        self._bin.truncate(os.fstat(self._bin.fileno()).st_size - length * self.dtype.itemsize)

    def end_documents(self, lengths: np.ndarray, sequences: np.ndarray | None) -> None:
        """The last tokens are documents whose sequences have these lengths, as in `add_documents`."""
        if lengths.size and lengths.max() > np.iinfo(np.int32).max:
            raise ValueError(f"{self.prefix}: a sequence of {lengths.max()} tokens; the format holds up to 2147483647.")
        entries = lengths.astype("<i4")
        if sequences is not None:
            assert sequences.sum() == len(lengths) and (sequences > 0).all(), (sequences, lengths)
            goes_on = np.ones(len(lengths), bool)
            goes_on[np.cumsum(sequences) - sequences] = False
            assert (lengths[goes_on] > 0).all(), lengths
            entries[goes_on] *= -1
        self._lengths.write(entries.tobytes())
        self.entries += len(entries)
        self.documents += len(lengths) if sequences is None else len(sequences)
        self.tokens += int(lengths.sum())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
            else:
                self._discard()
        except BaseException:
            self._discard()
            raise
        finally:
            # Closed last, since that gives up the lock.
            for file in (self._idx, self._lengths, self._bin):
                file.close()

    def _discard(self) -> None:
        for file in (self._idx, self._lengths, self._bin):
            Path(file.name).unlink(missing_ok=True)

    def _publish(self) -> None:
        self._write_index()
        for file in (self._bin, self._idx):
            file.flush()
            os.fsync(file.fileno())
        Path(self._lengths.name).unlink()
        old, new = (bin_path(self.prefix), idx_path(self.prefix)), (self._bin.name, self._idx.name)
        replaces = any(path.exists() for path in old)
        # An old file must not meet a new one, not even for a moment, nor after a power cut.
        old[1].unlink(missing_ok=True)
        for path, final in zip(new, old, strict=True):
            if replaces:
                _fsync_folder(final.parent)
            os.replace(path, final)
        _fsync_folder(old[1].parent)

    def _write_index(self) -> None:
        self._lengths.flush()
        entries = np.memmap(self._lengths.name, "<i4", "r") if self.entries else np.empty(0, "<i4")
        chunks = [slice(start, start + CHUNK) for start in range(0, self.entries, CHUNK)]
        sequences = sum(int(np.count_nonzero(entries[chunk])) for chunk in chunks)
        self._idx.write(HEADER.pack(MAGIC, VERSION, CODES[self.dtype], sequences, self.documents + 1))
        for chunk in chunks:
            self._idx.write(np.abs(entries[chunk][entries[chunk] != 0]).tobytes())
        offset = 0
        for chunk in chunks:
            sizes = np.abs(entries[chunk][entries[chunk] != 0].astype(np.int64)) * self.dtype.itemsize
            self._idx.write((offset + np.cumsum(sizes) - sizes).astype("<i8").tobytes())
            offset += int(sizes.sum())
        before = 0
        for chunk in chunks:
            # A document begins where the sequences so far end.
            counted = entries[chunk] != 0
            starts = before + np.cumsum(counted) - counted
            self._idx.write(starts[entries[chunk] >= 0].astype("<i8").tobytes())
            before += int(np.count_nonzero(counted))
        self._idx.write(np.array([sequences], "<i8").tobytes())


def _open_locked(path: Path) -> BinaryIO:
    """An empty file that no other process writes as well. A lock goes with its process, so a killed one leaves none."""
    file, busy = path.open("ab"), False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        busy = True
    except OSError:
        pass  # A file system without locks: there the user must keep two writers apart.
    # The other writer may have renamed or removed the file between our open and our lock.
    if busy or not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        file.close()
        raise ValueError(f"another process is writing {path}; wait for it, or choose another --output-prefix.")
    file.truncate(0)
    return file


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
