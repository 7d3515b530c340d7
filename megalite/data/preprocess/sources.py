"""Which files the flags name, and how each is opened: plain, compressed, standard input."""

import glob
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

FORMATS = ("jsonl", "text", "text-lines", "parquet")
STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input."""

    path: str
    format: str
    """One of FORMATS."""
    size: int
    """Bytes as stored; 0 when that is not known."""


def find_sources(inputs: Sequence[str], input_format: str) -> list[Source]:
    """The inputs in order: each a file, a pattern whose files are taken by name, or - for standard input.

    `input_format` is one of FORMATS, or "auto": by the ending of the name. ValueError names an input without a file.
    """
    paths: list[str] = []
    for name in inputs:
        if name == STDIN or Path(name).is_file():
            paths.append(name)
            continue
        if Path(name).is_dir():
            raise ValueError(f"--input {name} is a folder; name its files by a pattern such as '{name}/*.jsonl'.")
        found = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())
        if not found:
            raise ValueError(f"--input {name}: there is no such file.")
        paths += found
    if paths.count(STDIN) > 1:
        raise ValueError("--input names - (standard input) twice, but it can be read once.")
    return [
        Source(
            path=path,
            format=_format(path) if input_format == "auto" else input_format,
            size=0 if path == STDIN else Path(path).stat().st_size,
        )
        for path in paths
    ]


def _format(path: str) -> str:
    name = Path(path)
    ending = (name.with_suffix("") if name.suffix in _OPENERS else name).suffix
    return {".txt": "text", ".parquet": "parquet"}.get(ending, "jsonl")


class Counter(io.RawIOBase):
    """A file that knows how much of it was read, whatever is decompressed on top of it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.read_bytes = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        self.read_bytes += len(data)
        return len(data)


@contextmanager
def open_source(source: Source) -> Iterator[tuple[BinaryIO, Counter]]:
    """The bytes of an input, decompressed, and the count of those read; ValueError when it is damaged."""
    file = sys.stdin.buffer if source.path == STDIN else open(source.path, "rb")  # noqa: SIM115
    try:
        counter = Counter(file)
        buffered = io.BufferedReader(counter, 1 << 16)
        opener = _OPENERS.get(Path(source.path).suffix)
        try:
            yield (opener(buffered) if opener else buffered), counter
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"is damaged: {error}") from error
    finally:
        if source.path != STDIN:
            file.close()


def _open_gzip(file: BinaryIO) -> BinaryIO:
    return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]


def _open_zstd(file: BinaryIO) -> BinaryIO:
    try:
        import zstandard
    except ImportError as error:
        raise ValueError(": a .zst file needs zstandard: pip install zstandard") from error

    class Frames(io.RawIOBase):
        """The frames of a file, one after another. A cut one is an error, which zstandard's own reader hides."""

        def __init__(self) -> None:
            self.frame = zstandard.ZstdDecompressor().decompressobj()
            self.begun, self.ready = False, memoryview(b"")

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            while not self.ready:
                if not (data := file.read(1 << 13)):
                    if self.begun:
                        raise EOFError("it ends within a frame")
                    return 0
                out = []
                while data:
                    self.begun = True
                    try:
                        out.append(self.frame.decompress(data))
                    except zstandard.ZstdError as error:
                        raise EOFError(str(error)) from error
                    data = self.frame.unused_data if self.frame.eof else b""
                    if self.frame.eof:
                        self.frame, self.begun = zstandard.ZstdDecompressor().decompressobj(), False
                self.ready = memoryview(b"".join(out))
            count = min(len(buffer), len(self.ready))
            buffer[:count] = self.ready[:count]
            self.ready = self.ready[count:]
            return count

    return io.BufferedReader(Frames(), 1 << 16)


_OPENERS: dict[str, Callable[[BinaryIO], BinaryIO]] = {".gz": _open_gzip, ".zst": _open_zstd}
