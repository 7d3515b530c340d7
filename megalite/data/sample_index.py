"""Where each sample begins in a row of documents: array operations on blocks of documents, with no loop over either."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

import numpy as np
import torch

BLOCK = 1 << 15
"""Documents of a block: its arrays fit in a core's cache."""
DENSE = 1 / 8
"""Samples a document from which on it is cheaper to count the ends before each sample than to search them."""


def cut_samples(lengths: np.ndarray, documents: np.ndarray, *, seq_length: int, index: np.ndarray) -> None:
    """Fill `index` [n, 2]: for a cut each seq_length tokens the place in `documents` and the token offset there.

    `documents` are numbers of `lengths`, in the order in which they are laid end to end; the last cut lies inside.
    Blocks are worked on by as many threads as torch has.
    """
    # What costs is a cache miss for each document, so the table of lengths is made as narrow as holds them.
    table = lengths.astype(np.uint16) if lengths.max() <= np.iinfo(np.uint16).max else lengths
    row = np.empty(len(documents), table.dtype)

    def look_up(starts: range) -> list[int]:
        blocks = [slice(start, start + BLOCK) for start in starts]
        for block in blocks:
            table.take(documents[block], out=row[block], mode="clip")
        return [int(row[block].sum(dtype=np.int64)) for block in blocks]

    def cut(starts: range, before: list[int]) -> None:
        for start, tokens in zip(starts, before, strict=True):
            _cut_block(row[start : start + BLOCK], start, tokens, seq_length, index)

    # A part for each thread, since handing over a block takes as long as working on a third of it.
    number = torch.get_num_threads()
    size = -(-len(documents) // (BLOCK * number)) * BLOCK
    parts = [range(start, min(start + size, len(documents)), BLOCK) for start in range(0, len(documents), size)]
    with ThreadPoolExecutor(number) as threads:
        tokens = list(chain.from_iterable(threads.map(look_up, parts)))
        before = iter(np.cumsum([0, *tokens[:-1]]).tolist())
        list(threads.map(cut, parts, [list(islice(before, len(part))) for part in parts]))


def _cut_block(lengths: np.ndarray, start: int, before: int, seq_length: int, index: np.ndarray) -> None:
    """The cuts that fall in documents `start`, `start` + 1, ... of the row, which `before` tokens precede."""
    ends = torch.from_numpy(lengths.astype(np.int64))
    # Four times as fast as numpy's.
    tokens_after = torch.cumsum(ends, 0, out=ends).numpy()
    tokens_after += before
    first, stop = -(-before // seq_length), min(len(index), -(-int(tokens_after[-1]) // seq_length))
    cuts = np.arange(first, stop, dtype=np.int64) * seq_length
    if len(cuts) < DENSE * len(lengths):
        places = np.searchsorted(tokens_after, cuts, side="right")
    else:
        first_after = (tokens_after + (seq_length - 1 - first * seq_length)) // seq_length
        places = np.bincount(first_after, minlength=len(cuts))[: len(cuts)].cumsum()
    index[first:stop, 0] = places + start
    index[first:stop, 1] = cuts - tokens_after[places] + lengths[places]
