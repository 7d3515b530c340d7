"""Where the bytes of a corpus lie: in files, mapped into memory, or behind a URL, read range by range."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

WAITS = (1.0, 4.0, 16.0)
"""Seconds to wait before a failed read of a URL is tried again: a store that is busy for a moment ends no run."""


class Storage(Protocol):
    """A sequence of bytes that does not change."""

    size: int
    version: dict[str, int]
    """Differs when the content does."""

    def read(self, begin: int, end: int) -> np.ndarray:
        """Bytes `begin` to `end`, uint8."""

    def row(self, dtype: np.dtype) -> np.ndarray | None:
        """All of it as numbers, what is left of one at its end aside, where that costs nothing: a view is the fastest
        to slice."""


class MappedFile:
    """A file: reading costs no memory beside the system's cache, and no copy."""

    def __init__(self, path: str) -> None:
        status = Path(path).stat()
        self.size = status.st_size
        self.version = {"bytes": self.size, "mtime_ns": status.st_mtime_ns}
        # An empty file cannot be mapped. A plain view is sliced several times as fast as a memmap.
        self._bytes = np.asarray(np.memmap(path, np.uint8, "r")) if self.size else np.empty(0, np.uint8)

    def read(self, begin: int, end: int) -> np.ndarray:
        """Bytes `begin` to `end`, uint8: a view of the file."""
        return self._bytes[begin:end]

    def row(self, dtype: np.dtype) -> np.ndarray:
        """All of it as numbers, a view."""
        return self._bytes[: self.size // dtype.itemsize * dtype.itemsize].view(dtype)


class RemoteObject:
    """What a URL such as s3://bucket/name names, through fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._path = _file_system(url)
        information = _tried(url, lambda: self._files.info(self._path))
        self.size = int(information["size"])
        # What a store tells of an object, such as a tag or the time of its last change, differs from store to store.
        told = hashlib.md5(repr(sorted(information.items())).encode(), usedforsecurity=False)
        self.version = {"bytes": self.size, "told": int.from_bytes(told.digest()[:8], "little")}

    def read(self, begin: int, end: int) -> np.ndarray:
        """Bytes `begin` to `end`, uint8. OSError when they cannot be had after several trials."""
        found = _tried(self.url, lambda: self._files.cat_file(self._path, start=begin, end=end)) if begin < end else b""
        if len(found) != end - begin:
            raise OSError(f"{self.url} gave {len(found)} bytes instead of {end - begin}: it was changed meanwhile.")
        return np.frombuffer(found, np.uint8)

    def row(self, dtype: np.dtype) -> None:
        """None: it is read piece by piece."""


def is_url(path: str) -> bool:
    """Whether it is not the path of a file."""
    return "://" in path


def open_storage(path: str) -> Storage:
    """The bytes of a file or URL. FileNotFoundError when there is none; ValueError when its kind cannot be read."""
    return RemoteObject(path) if is_url(path) else MappedFile(path)


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ValueError(f'{url}: reading a URL needs fsspec. Run `pip install "megalite[remote]"`.') from None
    try:
        return url_to_fs(url)
    except (ImportError, ValueError) as error:  # The message names the package to install, or the known protocols.
        raise ValueError(f"{url} cannot be read: {error}") from None


def _tried(url: str, read: Callable[[], Any]) -> Any:
    for wait in (*WAITS, None):
        try:
            return read()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            if wait is None:
                raise OSError(f"{url} cannot be read after {len(WAITS) + 1} trials: {error}") from error
            time.sleep(wait)
    raise AssertionError
