"""Files that are on the disk when a function returns, and folders that appear whole or not at all."""

import ctypes
import os
import shutil
from contextlib import suppress
from pathlib import Path

_C = ctypes.CDLL(None)
_WRITE = 2
"""An option of sync_file_range(2): begin, and do not wait."""


def write_file(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def begin_flush(handle: int, start: int, count: int) -> None:
    """Have the disk begin with these bytes of a file, so that less is left for fsync to wait for. A hint, on Linux."""
    with suppress(AttributeError):
        _C.sync_file_range(handle, ctypes.c_int64(start), ctypes.c_int64(count), _WRITE)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk; fsync of a file does not promise its name."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folders(root: Path) -> None:
    """`sync_folder` for a folder and every folder in it."""
    for folder, _, _ in os.walk(root, topdown=False):
        sync_folder(Path(folder))


def replace_file(path: Path, data: bytes) -> None:
    """Give a file new content; a reader finds the old or the new, never a part."""
    temporary = path.with_name(f".{path.name}.saving")
    write_file(temporary, data)
    os.replace(temporary, path)
    sync_folder(path.parent)


def temporary_folder(final: Path) -> Path:
    """Where a folder is written before it takes its name."""
    return final.with_name(f".{final.name}.saving")


def replaced_folder(final: Path) -> Path:
    """Where the folder that is being replaced lies, from the moment it gives up its name."""
    return final.with_name(f".{final.name}.replaced")


def removed_folder(final: Path) -> Path:
    """Where a folder that is no longer wanted lies, from the moment it gives up its name."""
    return final.with_name(f".{final.name}.removed")


def make_folder(path: Path) -> None:
    """A folder whose name is on the disk, with the folders above it, unless it is there."""
    if not path.exists():
        path.mkdir(parents=True)
        sync_folder(path.parent)


def begin_folder(final: Path) -> Path:
    """An empty temporary folder for `final`, after clearing away what an earlier attempt left."""
    temporary, replaced = temporary_folder(final), replaced_folder(final)
    make_folder(final.parent)
    if replaced.exists() and not final.exists():  # stopped between the two renames: the old one is still the one
        os.rename(replaced, final)
    for stale in (temporary, replaced):
        if stale.exists():
            shutil.rmtree(stale)
    temporary.mkdir()
    return temporary


def publish_folder(final: Path) -> None:
    """Give the finished temporary folder its name. A folder of that name is moved aside, then deleted."""
    temporary, replaced = temporary_folder(final), replaced_folder(final)
    sync_folders(temporary)
    if final.exists():
        os.rename(final, replaced)
    os.rename(temporary, final)
    sync_folder(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_folder(final: Path) -> None:
    """Delete a folder that has its final name: it is whole or has another name, even if the deletion is cut off."""
    removed = removed_folder(final)
    if removed.exists():
        shutil.rmtree(removed)
    os.rename(final, removed)
    sync_folder(final.parent)  # else the name could come back, after a loss of power, to what is half deleted
    shutil.rmtree(removed)
