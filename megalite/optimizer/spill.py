"""A file in which a rank keeps, while it runs, what does not fit into memory."""

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor


class SpillFile:
    """The file of one rank in `folder`: zeros at first, of exactly `nbytes`, all allotted from the start.

    It is locked for as long as the process lives and removed at its end, so that a file without a lock is one that a
    killed run has left behind: it is replaced, and so are, by rank 0, those of `ranks` and beyond, which this run has
    not. Raises ValueError where another run uses the folder, OSError where the disk is full.
    """

    def __init__(self, folder: Path, rank: int, nbytes: int, *, ranks: int) -> None:
        self.folder, self.nbytes = folder, nbytes
        self.path = folder / _name(rank)
        self.read_bytes = self.written_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        left = [path for path in folder.glob(_name("*")) if rank == 0 and _number(path) >= ranks]
        for path in left:
            os.close(_lock(path))
            path.unlink()
        self.replaced = len(left) + self.path.exists()
        """Files of a run that was killed."""
        self._fd = _lock(self.path)
        self.close = weakref.finalize(self, _remove, self._fd, self.path)
        with self._full_disk_explained():
            os.ftruncate(self._fd, 0)
            if nbytes > self._free():  # else the attempt would fill the disk that others use
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if nbytes:
                os.posix_fallocate(self._fd, 0, nbytes)

    @contextmanager
    def _full_disk_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise OSError(
                error.errno,
                f"The disk is full: {self.path} needs {self.nbytes:,} bytes for the optimizer's states, and "
                f"{self._free():,} are free. Make room, give another --offload-dir, share the states "
                "over more ranks by --use-distributed-optimizer, or lower --optimizer-offload-fraction.",
            ) from error

    def _free(self) -> int:
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize

    def read(self, vector: Tensor, place: int) -> None:
        """Fill a vector with what is at a byte of the file."""
        view = _bytes(vector)
        while view:
            count = os.preadv(self._fd, [view], place)
            if count == 0:
                raise OSError(errno.EIO, f"{self.path} was cut short by someone else.")
            view, place = view[count:], place + count
            self.read_bytes += count

    def write(self, vector: Tensor, place: int) -> None:
        """Put a vector at a byte of the file."""
        view = _bytes(vector)
        with self._full_disk_explained():
            while view:
                count = os.pwrite(self._fd, view, place)
                view, place = view[count:], place + count
                self.written_bytes += count

    def mapped(self, dtype: torch.dtype) -> Tensor:
        """All of the file as a vector whose changes it keeps."""
        count = self.nbytes // dtype.itemsize
        return (
            torch.from_file(str(self.path), shared=True, size=count, dtype=dtype)
            if count
            else torch.empty(0, dtype=dtype)
        )


def _bytes(vector: Tensor) -> memoryview:
    return memoryview(vector.view(torch.uint8).numpy().data)


def _name(rank: int | str) -> str:
    return f"megalite-states-{rank}.bin"


def _number(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _lock(path: Path) -> int:
    """Open the file, made if need be, for this process alone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ValueError(
            f"--offload-dir {path.parent} is in use by another run, which holds {path.name}. Give each run a folder of "
            "its own."
        ) from None
    return fd


def _remove(fd: int, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.close(fd)
