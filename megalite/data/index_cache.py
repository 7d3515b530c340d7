"""Index arrays kept on disk, safe among ranks and jobs without a barrier.

The name of an entry is a hash of all that its arrays depend on, so whoever builds one builds the same bytes: each
builder writes files of its own and renames them, and it does not matter who comes last. The description goes last and
marks the entry whole. Where files can be locked, one builds and the others wait for it.
"""

import errno
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[tuple[int, ...], np.dtype]]
FORMAT = 1
"""Part of each name: raise it when the same description would give other arrays."""


def cached_arrays(
    folder: Path | None, description: Mapping[str, object], shapes: Shapes, build: Callable[[], Arrays]
) -> tuple[Arrays, str]:
    """The arrays of `build`, from the cache when it has them whole; and a remark, empty when there is nothing to say.

    `description` names everything that the arrays depend on, as JSON; its "class" and "split" begin the file names.
    A folder that cannot be written is no error: the arrays then stay in memory.
    """
    if folder is None:
        return build(), ""
    text = json.dumps({"format": FORMAT, **description}, indent=4)
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    stem = f"{digest}-{description['class']}-{description['split']}"
    files = {name: folder / f"{stem}-{name}.npy" for name in shapes}
    marker = folder / f"{stem}-description.txt"
    cached = _load(files, marker, text, shapes)
    if cached is not None:
        return cached, ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder) as alone:
            if alone:
                for leftover in folder.glob(f".{stem}-*.tmp"):
                    leftover.unlink(missing_ok=True)
                cached = _load(files, marker, text, shapes)
            arrays = cached or _checked(build(), shapes)
            if cached is None:
                for name, path in files.items():
                    _write(path, arrays[name])
                _write(marker, text)
    except OSError as error:
        remark = f"The index is kept in memory: it cannot be cached in {folder} ({error.strerror})."
        return _checked(build(), shapes), remark
    # Mapped from the file, all ranks of a machine share one copy.
    return _load(files, marker, text, shapes) or arrays, ""


def _checked(arrays: Arrays, shapes: Shapes) -> Arrays:
    assert {name: (a.shape, a.dtype) for name, a in arrays.items()} == shapes, (shapes, arrays)
    return arrays


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[bool]:
    """Wait until nobody else builds in this folder; False where its file system cannot say, and all may build at once.

    The lock is on the folder, so that it leaves no file, and goes with its process, so that a killed one leaves none.
    OSError where the folder cannot be written.
    """
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    descriptor, alone = os.open(folder, os.O_RDONLY), True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(descriptor)


def _load(files: dict[str, Path], marker: Path, text: str, shapes: Shapes) -> Arrays | None:
    """The arrays of a whole entry, memory-mapped; None when anything is missing, cut or different."""
    try:
        if marker.read_text() != text:
            return None
        # A plain view is read several times as fast as a memmap.
        arrays = {name: np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)) for name, path in files.items()}
    except (OSError, ValueError, EOFError):
        return None
    whole = all((a.shape, a.dtype) == shapes[name] for name, a in arrays.items())
    return arrays if whole else None


def _write(path: Path, content: np.ndarray | str) -> None:
    """Write beside and rename: the name never stands for half a file."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, str):
                file.write(content.encode())
            else:
                np.save(file, content, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; another user may well share the cache.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
