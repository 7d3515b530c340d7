"""Batches encoded by several processes, their results in order; a dead worker is noticed, a dead parent too."""

import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, connection, get_context, parent_process
from multiprocessing.process import BaseProcess

from megalite.data.preprocess.encode import Batch, Encoded, Encoding, encode_batch

IN_FLIGHT = 3
"""Batches for each worker that are read but not yet written: bounds the memory, whatever the size of the input."""


def encode_in_order(
    encoding: Encoding, batches: Iterable[Batch], *, workers: int
) -> Iterator[tuple[Batch, dict[str, Encoded]]]:
    """Each batch with its result, in the order of the batches. ValueError for a bad line and for a worker that died."""
    if workers == 1:
        for batch in batches:
            yield batch, encode_batch(encoding, batch)
        return
    # Spawned, not forked: a fork would copy the threads and locks of the tokenizer libraries in any state.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin_worker)
    children: set[BaseProcess] = set()
    pending: deque[tuple[Batch, Future[dict[str, Encoded]]]] = deque()
    try:
        for batch in batches:
            pending.append((batch, pool.submit(encode_batch, encoding, batch)))
            children.update(active_children())
            if len(pending) > IN_FLIGHT * workers:
                done, result = pending.popleft()
                yield done, result.result()
        while pending:
            done, result = pending.popleft()
            yield done, result.result()
    except BrokenProcessPool as error:
        pool.shutdown()
        raise ValueError(f"a worker died: {_cause(children)}.") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _cause(children: set[BaseProcess]) -> str:
    codes = [child.exitcode for child in children if child.exitcode]
    # The pool ends the others by SIGTERM, so that one says least.
    code = next((code for code in codes if code != -signal.SIGTERM), -signal.SIGTERM)
    if code > 0:
        return f"it ended with status {code}"
    hint = "; most often the machine ran out of memory: use fewer --workers" if code == -signal.SIGKILL else ""
    return f"it was ended by {signal.Signals(-code).name}{hint}"


def _begin_worker() -> None:
    # Ctrl-C reaches the whole group; the parent alone speaks about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
