"""Contestants in processes of their own that take turns: all but one wait on a pipe, which costs nothing."""

import ctypes
import importlib
import multiprocessing
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from plain import Sizes

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2


class Timed(NamedTuple):
    """One step: its wall time, its processor time and its loss."""

    wall: float
    cpu: float
    loss: float


def keep_heap() -> None:
    """Have glibc keep freed memory: by default each large tensor is mapped anew, and a fresh page costs 3 us."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            for parameter, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 64 << 20)):
                libc.mallopt(parameter, value)


def serve(
    module: str, name: str, sizes: Sizes, rank: int, ranks: int, store: str, kept_heap: bool, pipe: Connection
) -> None:
    """Build one rank of a contestant, then train the steps (threads, numbers of the steps) that the pipe asks for."""
    if kept_heap:
        keep_heap()
    try:
        builders = importlib.import_module(module).CONTESTANTS  # the process that only keeps time needs none of it
        torch.set_num_threads(1)
        torch.manual_seed(0)
        if ranks > 1:
            dist.init_process_group("gloo", rank=rank, world_size=ranks, store=dist.FileStore(store, ranks))
        step = builders[name](sizes, rank)
        pipe.send("ready")
        split = "DP" in name
        while (order := pipe.recv()) is not None:
            threads, numbers = order
            torch.set_num_threads(threads)
            answer = []
            for number in numbers:
                tokens, labels = batch(sizes, number, rank if split else 0)
                if ranks > 1:
                    dist.barrier()
                wall, cpu = time.perf_counter(), time.process_time()
                loss = step(tokens, labels)
                answer.append(Timed(time.perf_counter() - wall, time.process_time() - cpu, loss))
            pipe.send(answer)
    except EOFError:
        pass
    except BaseException:
        pipe.send(traceback.format_exc())


def batch(sizes: Sizes, number: int, replica: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels [b, s] of one step for one data-parallel replica: random, the same for every contestant."""
    generator = torch.Generator().manual_seed(1000 * number + replica)
    text = torch.randint(sizes.vocab, (sizes.micro_batch, sizes.sequence + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


class Contestant:
    """The processes of one contestant, which the table CONTESTANTS of a module tells how to build."""

    def __init__(self, name: str, sizes: Sizes, *, ranks: int, kept_heap: bool, module: str = "contestants") -> None:
        self.name, self.steps = name, 0
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes, self._processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            arguments = (module, name, sizes, rank, ranks, store, kept_heap, theirs)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _answers(self) -> list[Any]:
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, str) and answer != "ready":
                raise RuntimeError(f"{self.name} failed:\n{answer}")
        return answers

    def wait_until_built(self) -> None:
        self._answers()

    def run(self, count: int, *, threads: int) -> list[Timed]:
        """Train some steps; the slowest rank's times, the mean of their losses."""
        for pipe in self._pipes:
            pipe.send((threads, range(self.steps, self.steps + count)))
        self.steps += count
        return [
            Timed(max(t.wall for t in ranks), max(t.cpu for t in ranks), sum(t.loss for t in ranks) / len(ranks))
            for ranks in zip(*self._answers(), strict=True)
        ]

    def stop(self) -> None:
        for pipe in self._pipes:
            with suppress(BrokenPipeError):
                pipe.send(None)
        for process in self._processes:
            process.join(20)
            process.kill()
        self._folder.cleanup()
