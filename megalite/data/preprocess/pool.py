"""Batches encoded by several processes, their results in order; a worker's death is noticed, and so is the parent's.

Each worker has a pipe of its own and one batch at a time. So the end of a process is the end of its pipe, even in the
middle of a message; on a shared queue (ProcessPoolExecutor has two) the parent would wait for the rest for ever.
"""

import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from megalite.data.preprocess.encode import Batch, Encoded, Encoding, encode_batch

Result = tuple[Batch, dict[str, Encoded]]
Worker = tuple[BaseProcess, Connection]


def encode_in_order(encoding: Encoding, batches: Iterable[Batch], *, workers: int) -> Iterator[Result]:
    """Each batch with its result, in the order of the batches. ValueError for a bad line and for a worker that died."""
    if workers == 1:
        for batch in batches:
            yield batch, encode_batch(encoding, batch)
        return
    started: list[Worker] = []
    try:
        for _ in range(workers):
            started.append(_start(encoding))
        yield from _deal(iter(batches), started)
    finally:
        for process, connection in started:
            connection.close()
            process.terminate()
            process.join()


def _deal(batches: Iterator[Batch], workers: list[Worker]) -> Iterator[Result]:
    """Batches go round the workers in turn, and so do their results: the order needs no sorting."""
    busy: dict[int, Batch] = {}
    for turn in cycle(range(len(workers))):
        done = (busy.pop(turn), _receive(workers[turn])) if turn in busy else None
        batch = next(batches, None)
        if batch is not None:
            _send(workers[turn], batch)
            busy[turn] = batch
        if done is not None:
            yield done
        if batch is None and not busy:
            return


def _start(encoding: Encoding) -> Worker:
    # Spawned, not forked: a fork would copy the pipes of the others, and locks of the libraries in any state.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, encoding), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _work(connection: Connection, encoding: Encoding) -> None:
    """The life of a worker: until the parent closes the pipe, or is no more."""
    # Ctrl-C reaches the whole group of processes; the parent alone speaks about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            try:
                result: dict[str, Encoded] | str = encode_batch(encoding, connection.recv())
            except ValueError as error:
                result = str(error)
            connection.send(result)


def _send(worker: Worker, batch: Batch) -> None:
    try:
        worker[1].send(batch)
    except OSError as error:
        raise ValueError(_death(worker[0])) from error


def _receive(worker: Worker) -> dict[str, Encoded]:
    try:
        result = worker[1].recv()
    except (EOFError, OSError) as error:
        raise ValueError(_death(worker[0])) from error
    if isinstance(result, str):
        raise ValueError(result)
    return result


def _death(process: BaseProcess) -> str:
    process.join()
    code = process.exitcode or 0
    if code >= 0:
        return f"a worker died: it ended with status {code}."
    hint = "; most often the machine ran out of memory: use fewer --workers" if code == -signal.SIGKILL else ""
    return f"a worker died: it was ended by {signal.Signals(-code).name}{hint}."
