"""A pool of gloo ranks that lives as long as the test run: importing torch once per rank, not once per test.

    pool.run(Grid(sizes={"tp": 2}), function, argument)   ->  what function(mesh, argument) returned on each rank

`function` is importable, its arguments and results travel by pickle. The first ranks of the pool take part, the others
rest; every call is a job of its own, with groups of its own. Where one rank fails, its traceback is raised here, and
the ranks start anew for the next call.
"""

import gc
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from megalite.grid import Grid
from megalite.mesh import build_mesh, stop

FEWEST = 4
SECONDS = 240
TIMEOUT = timedelta(seconds=SECONDS)
CPU = torch.device("cpu")


def _serve(rank: int, commands: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        grid, store, function, arguments = commands.recv()
        try:
            dist.init_process_group(
                "gloo", rank=rank, world_size=grid.world_size, store=dist.FileStore(store, grid.world_size)
            )
            mesh = build_mesh(grid, rank=rank, device=CPU, timeout=TIMEOUT)
            commands.send((True, function(mesh, *arguments)))
            stop()
            del mesh
            gc.collect()  # a group that garbage refers to keeps its threads, which wake a hundred times a second
        except BaseException:
            commands.send((False, traceback.format_exc()))


class Pool:
    """Starts its ranks when a call needs them: four, or more where it needs more."""

    def __init__(self) -> None:
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder = tempfile.TemporaryDirectory(prefix="megalite-pool-")
        self._calls = 0

    def _start(self, ranks: int) -> None:
        self.stop()  # torch numbers groups within a process: ranks of different age could not meet
        context = multiprocessing.get_context("spawn")
        for rank in range(max(ranks, FEWEST)):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(ours)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []

    def run(self, grid: Grid, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call the function on the grid's ranks; a grid of one rank runs in this process."""
        if grid.world_size == 1:
            return [function(build_mesh(grid, rank=0, device=CPU, timeout=TIMEOUT), *arguments)]
        if len(self._processes) < grid.world_size:
            self._start(grid.world_size)
        pipes = self._pipes[: grid.world_size]
        self._calls += 1
        for pipe in pipes:
            pipe.send((grid, f"{self._folder.name}/call-{self._calls}", function, arguments))
        results: dict[Connection, Any] = {}
        while len(results) < len(pipes):
            ready = wait([pipe for pipe in pipes if pipe not in results], timeout=SECONDS)
            for pipe in ready:
                try:
                    succeeded, results[pipe] = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    succeeded, results[pipe] = False, "it died without a word"
                if not succeeded:
                    self.stop()
                    raise AssertionError(f"rank {pipes.index(pipe)} of {grid.sizes} failed:\n{results[pipe]}")
            if not ready:
                self.stop()
                missing = [rank for rank, pipe in enumerate(pipes) if pipe not in results]
                raise AssertionError(f"ranks {missing} of {grid.sizes} did not answer within {SECONDS} s")
        return [results[pipe] for pipe in pipes]
