"""Training jobs that can be killed. A process that has imported everything forks their ranks, in milliseconds.

with Job(folder, argv, {"tp": 2}) as job:
        job.kill([1])
        job.wait()
"""

import ctypes
import faulthandler
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist

from megalite.checkpoint.format import read_index
from megalite.checkpoint.load import check_checksums
from megalite.checkpoint.place import TRACKER, find
from megalite.grid import Grid
from megalite.mesh import build_mesh
from tests.cases.harness import in_pool

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])
_PATIENCE = 60.0  # seconds
_CLONE_NEWNS, _MS_REMOUNT, _MS_READ_ONLY, _MS_PRIVATE_ALL = 0x20000, 32, 1, (1 << 18) | (1 << 14)

Step = Callable[[int], object]
"""What a rank does besides training; it is given its number."""


def nothing(rank: int) -> None:
    pass


def _rank(folder: Path, argv: list[str], sizes: dict[str, int], rank: int, before: Step, after: Step) -> None:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(_PATIENCE / 2, file=(folder / f"waits-{rank}").open("w"))
    try:
        before(rank)
    except OSError as error:
        (folder / f"said-{rank}").write_text(str(error))
        os._exit(1)
    grid = Grid(sizes=sizes)
    timeout = timedelta(seconds=_PATIENCE)
    if grid.world_size > 1:
        store = dist.FileStore(str(folder / "store"), grid.world_size)
        dist.init_process_group("gloo", rank=rank, world_size=grid.world_size, store=store, timeout=timeout)
    mesh = build_mesh(grid, rank=rank, device=torch.device("cpu"), timeout=timeout)
    status, said = in_pool(mesh, argv)
    (folder / f"said-{rank}").write_text(said)
    after(rank)
    os._exit(status)  # without the farewells that ranks would owe each other


class Job:
    """The ranks of one command line; `folder` is its own, for what they say."""

    def __init__(
        self, folder: Path, argv: list[str], sizes: dict[str, int], *, before: Step = nothing, after: Step = nothing
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.ranks = [
            _CONTEXT.Process(target=_rank, args=(folder, argv, sizes, rank, before, after))
            for rank in range(Grid(sizes=sizes).world_size)
        ]

    def __enter__(self) -> "Job":
        for rank in self.ranks:
            rank.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.join()

    @property
    def is_running(self) -> bool:
        return any(rank.is_alive() for rank in self.ranks)

    def kill(self, victims: Collection[int]) -> bool:
        """SIGKILL, to all of them at once; whether any still lived."""
        alive = [self.ranks[rank] for rank in victims if self.ranks[rank].is_alive()]
        for rank in alive:
            rank.kill()
        return bool(alive)

    def wait(self) -> list[int | None]:
        """How each rank ended. All must, and soon: one that waits for a dead rank fails here."""
        until = time.monotonic() + _PATIENCE
        for number, rank in enumerate(self.ranks):
            rank.join(max(0.0, until - time.monotonic()))
            assert not rank.is_alive(), f"rank {number} still waits:\n{(self.folder / f'waits-{number}').read_text()}"
        return [rank.exitcode for rank in self.ranks]

    def said(self, rank: int = 0) -> str:
        """What a rank printed that lived to its end."""
        return (self.folder / f"said-{rank}").read_text()


def check_named(root: Path, *, deeply: bool) -> int:
    """What the tracker names is whole: its files have their sizes and, `deeply`, their checksums. Its iteration; 0 if
    nothing was ever named."""
    if not (root / TRACKER).is_file():
        return 0
    directory = find(root)
    index = read_index(directory)
    if deeply:
        assert check_checksums(directory, index, index.files) == []
    for name, record in index.files.items():
        assert (directory / name).stat().st_size == record.bytes, f"{directory} is named and {name} is not whole"
    return index.scalars["iteration"]


def small_disk(folder: Path, nbytes: int) -> None:
    """Mount a file system of this size on the folder, which only this process sees. OSError where that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        lambda: libc.unshare(_CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, _MS_PRIVATE_ALL, None),
        lambda: libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={nbytes}".encode()),
    ):
        if call() != 0:
            raise OSError(ctypes.get_errno(), "no file system can be mounted here")


def read_only(folder: Path) -> None:
    """Make a `small_disk` refuse to be written."""
    if ctypes.CDLL(None, use_errno=True).mount(b"none", os.fsencode(folder), None, _MS_REMOUNT | _MS_READ_ONLY, None):
        raise OSError(ctypes.get_errno(), "the file system cannot be made read-only")


def short_files(nbytes: int) -> None:
    """Let no file of this process grow beyond so many bytes: the system calls it EFBIG, as a quota would EDQUOT."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
