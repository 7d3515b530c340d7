"""How many workers are the fastest for an input on this machine: tried on its beginning."""

import time
from collections.abc import Callable, Sequence

from megalite.data.preprocess.corpus import open_corpus
from megalite.data.preprocess.encode import Encoding
from megalite.data.preprocess.pool import encode_in_order
from megalite.data.preprocess.sources import STDIN


def find_workers(
    *,
    inputs: Sequence[str],
    encoding: Encoding,
    candidates: Sequence[int],
    max_documents: int,
    input_format: str = "auto",
    say: Callable[[str], None] = print,
) -> int:
    """The number of `candidates` with the most tokens a second on the first `max_documents` documents.

    Nothing is written, and what workers take to start does not count. ValueError as in `preprocess`, and where the
    input ends before there is anything to compare.
    """
    if STDIN in inputs:
        raise ValueError("--find-optimal-num-workers reads the input several times; give files, not - .")
    rates = {}
    for workers in candidates:
        _, encoder, batches = open_corpus(inputs, input_format, encoding, lambda _: None)
        documents = tokens = 0
        started = ended = time.perf_counter()
        # The first result of each worker comes with its start.
        for number, (_, done) in enumerate(encode_in_order(encoder, batches, workers=workers)):
            if done.bad and encoding.on_error == "stop":
                raise ValueError(done.bad[0].line())
            documents += done.records
            ended = time.perf_counter()
            if number < workers:
                started = ended
            else:
                tokens += sum(len(found.tokens) for found in done.encoded.values())
            if documents >= max_documents:
                break
        if ended == started:
            raise ValueError(
                f"--input {' '.join(inputs)} is too small to compare {workers} workers on: one is enough for it."
            )
        rates[workers] = tokens / (ended - started)
        say(f"{workers} workers: {rates[workers]:.0f} tokens/s")
    best = max(candidates, key=rates.__getitem__)
    say(f"the fastest: --workers {best}")
    return best
