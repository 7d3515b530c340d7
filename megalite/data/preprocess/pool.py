"""Batches encoded by several processes, their results in order; a worker's death is noticed, and so is the parent's.

Each worker has a pipe of its own. So the end of a process is the end of its pipe, even in the middle of a message; on
a shared queue (ProcessPoolExecutor has two) the parent would wait for the rest for ever.
"""

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Thread

from megalite.data.preprocess.batch import Batch, Done
from megalite.data.preprocess.encode import Encoder, Encoding
from megalite.data.tokenizer import build_tokenizer

Result = tuple[Batch, Done]
Worker = tuple[BaseProcess, Connection]

AHEAD = 2
"""Batches that a worker has: one in work, one so that it need not wait for the next."""
HELD = 4
"""Batches under way for each worker, those included whose turn has not come."""


def encode_in_order(encoder: Encoder, batches: Iterable[Batch], *, workers: int) -> Iterator[Result]:
    """Each batch with its result, in the order of the batches; ValueError for a worker that died.

    One worker is this process; more have encoders of their own, like this one.
    """
    if workers == 1:
        for batch in batches:
            yield batch, encoder.batch(batch)
        return
    started: list[Worker] = []
    try:
        for _ in range(workers):
            started.append(_start(encoder.encoding))
        yield from _deal(iter(batches), started)
    finally:
        for process, connection in started:
            connection.close()
            process.terminate()
            process.join()


def _deal(batches: Iterator[Batch], workers: list[Worker]) -> Iterator[Result]:
    """Batches go to whoever has the fewest; results wait for their turn."""
    under_way: dict[Connection, deque[tuple[int, Batch]]] = {connection: deque() for _, connection in workers}
    processes = {connection: process for process, connection in workers}
    done: dict[int, Result] = {}
    sent = due = 0
    more = True
    while more or due < sent:
        least = min(under_way, key=lambda connection: len(under_way[connection]))
        if more and len(under_way[least]) < AHEAD and sent - due < HELD * len(workers):
            batch = next(batches, None)
            if batch is None:
                more = False
                continue
            _send((processes[least], least), batch)
            under_way[least].append((sent, batch))
            sent += 1
        elif due in done:
            yield done.pop(due)
            due += 1
        else:
            for connection in wait([one for one, tasks in under_way.items() if tasks]):
                assert isinstance(connection, Connection)
                number, batch = under_way[connection].popleft()
                done[number] = batch, _receive((processes[connection], connection))


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
    tasks: SimpleQueue[Batch | None] = SimpleQueue()
    # A thread takes batches in at any time: were both ends to send, each would wait for the other.
    Thread(target=_take_in, args=(connection, tasks), daemon=True).start()
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            encoder = Encoder(encoding, build_tokenizer(**dict(encoding.tokenizer)))
            while (batch := tasks.get()) is not None:
                connection.send(encoder.batch(batch))
        except ValueError as error:
            connection.send(str(error))


def _take_in(connection: Connection, tasks: "SimpleQueue[Batch | None]") -> None:
    try:
        while True:
            tasks.put(connection.recv())
    except (EOFError, OSError):
        tasks.put(None)


def _send(worker: Worker, batch: Batch) -> None:
    try:
        worker[1].send(batch)
    except OSError as error:
        raise ValueError(_death(worker[0])) from error


def _receive(worker: Worker) -> Done:
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
