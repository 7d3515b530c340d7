"""Several .bin/.idx pairs joined to one, in constant memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from megalite.data.indexed import IndexedCorpus
from megalite.data.indexed_writer import IndexedWriter

COPIED = 1 << 24
"""Tokens copied at a time."""
DOCUMENTS = 1 << 16
"""Documents taken at a time."""


def pairs_in(folder: Path) -> list[str]:
    """The prefixes of all pairs in a folder, by name. ValueError when there is none, or a half one."""
    prefixes = {ending: {path.name[:-4] for path in folder.glob(f"*{ending}")} for ending in (".bin", ".idx")}
    if halves := sorted(prefixes[".bin"] ^ prefixes[".idx"]):
        raise ValueError(f"{folder / halves[0]} has only one of .bin and .idx: take it away, or preprocess it again.")
    if not prefixes[".bin"]:
        raise ValueError(f"{folder} holds no .bin/.idx pair.")
    return [str(folder / name) for name in sorted(prefixes[".bin"])]


def merge(prefixes: Sequence[str], output_prefix: str) -> IndexedCorpus:
    """The documents of all pairs in order, under a new prefix, in the narrowest dtype that holds each of theirs.

    The pair appears whole or not at all. ValueError when an input is damaged, or is the output, too.
    """
    if Path(output_prefix).resolve() in [Path(prefix).resolve() for prefix in prefixes]:
        raise ValueError(f"--output-prefix {output_prefix} is one of the inputs. Choose another.")
    corpora = [IndexedCorpus(prefix) for prefix in prefixes]
    with IndexedWriter(output_prefix, np.result_type(*(corpus.dtype for corpus in corpora))) as writer:
        for corpus in corpora:
            for first in range(0, len(corpus.documents) - 1, DOCUMENTS):
                boundaries = corpus.documents[first : first + DOCUMENTS + 1]
                for tokens in _slices(corpus, range(int(boundaries[0]), int(boundaries[-1]))):
                    writer.add_tokens(tokens)
                writer.end_documents(*_documents(corpus.lengths, boundaries))
    return IndexedCorpus(output_prefix)


def _slices(corpus: IndexedCorpus, sequences: range) -> Iterator[np.ndarray]:
    tokens = corpus.run(sequences)
    for start in range(0, len(tokens), COPIED):
        yield tokens[start : start + COPIED]


def _documents(lengths: np.ndarray, boundaries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lengths of the sequences, 0 for a document without any, and how many belong to each document."""
    counts = np.diff(boundaries)
    rows = lengths[boundaries[0] : boundaries[-1]]
    # Sequences without tokens would be boundaries of documents in the writer's eyes.
    full = np.add.reduceat(np.append(rows > 0, 0), boundaries[:-1] - boundaries[0]) * (counts > 0)
    ends = np.cumsum(full)
    kept = np.insert(rows[rows > 0], (ends - full)[full == 0], 0)
    return kept, np.maximum(full, 1)
