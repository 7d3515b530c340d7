"""Whether a .bin/.idx pair is what a writer would have written."""

from collections.abc import Iterator

import numpy as np

from megalite.data.indexed import IndexedCorpus

CHUNK = 1 << 22
"""Sequences or tokens looked at together."""


def faults(corpus: IndexedCorpus, vocab_size: int | None = None) -> Iterator[str]:
    """What is wrong beyond what opening it shows; nothing when all is well. Every entry is looked at.

    With vocab_size every token is, too: ids must be below it.
    """
    yield from _offset_faults(corpus)
    falling = np.flatnonzero(np.diff(corpus.documents) < 0)
    if falling.size:
        yield f"document {falling[0]} ends before it begins, and {falling.size - 1} more do"
    if vocab_size is not None:
        yield from _id_faults(corpus, vocab_size)


def _offset_faults(corpus: IndexedCorpus) -> Iterator[str]:
    """Sequences must lie back to back and fill the file."""
    expected = 0
    for first in range(0, len(corpus), CHUNK):
        sizes = corpus.lengths[first : first + CHUNK].astype(np.int64) * corpus.dtype.itemsize
        ends = np.cumsum(sizes) + expected
        wrong = np.flatnonzero(corpus.offsets[first : first + CHUNK] != ends - sizes)
        if wrong.size:
            sequence = first + int(wrong[0])
            yield (
                f"{corpus.place(sequence)} begins at byte {corpus.offsets[sequence]}, where the tokens before it end "
                f"at {ends[wrong[0]] - sizes[wrong[0]]}"
            )
            return
        expected = int(ends[-1])
    if corpus.bytes > expected:
        yield f"the .bin has {corpus.bytes - expected} bytes after the last token"


def _id_faults(corpus: IndexedCorpus, vocab_size: int) -> Iterator[str]:
    """The first id outside of the vocabulary, and how many there are."""
    first, count = None, 0
    for sequence in range(0, len(corpus), CHUNK >> 8):
        here = range(sequence, min(sequence + (CHUNK >> 8), len(corpus)))
        tokens = corpus.run(here)
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            wrong = np.flatnonzero((part < 0) | (part >= vocab_size))
            count += wrong.size
            if first is None and wrong.size:
                ends = np.cumsum(corpus.lengths[here.start : here.stop], dtype=np.int64)
                holder = here.start + int(np.searchsorted(ends, start + wrong[0], side="right"))
                first = f"{corpus.place(holder)} holds the token id {part[wrong[0]]}"
    if first is not None:
        yield f"{first}, where the vocabulary has {vocab_size} entries; {count} tokens are outside of it"


def length_table(lengths: np.ndarray) -> list[tuple[int, int, int, int]]:
    """How long sequences are, by powers of two: least, most, number of sequences, and tokens in them."""
    kind = np.ceil(np.log2(np.maximum(lengths, 1) + 0.5)).astype(np.int64) * (lengths > 0)
    numbers, tokens = np.bincount(kind), np.bincount(kind, weights=lengths)
    return [
        (1 << (power - 1) if power else 0, (1 << power) - 1, int(numbers[power]), int(tokens[power]))
        for power in np.flatnonzero(numbers).tolist()
    ]
