"""Building and reading a data set beside the most that could be had: a compiled loop, bare slices of a file."""

import argparse
import ctypes
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from megalite.data.blend_order import blend_order
from megalite.data.gpt_dataset import GPTDataset
from megalite.data.indexed import IndexedCorpus
from megalite.data.indexed_writer import IndexedWriter
from megalite.data.sample_index import cut_samples

LOOP = """
#include <stdint.h>
void cut(const int32_t *lengths, const int32_t *documents, int64_t step, int64_t count, int32_t *index) {
  int64_t place = 0, before = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t at = i * step;
    while (before + lengths[documents[place]] <= at) before += lengths[documents[place++]];
    index[2 * i] = (int32_t)place;
    index[2 * i + 1] = (int32_t)(at - before);
  }
}
"""
DOCUMENTS, SAMPLES, BLENDED = 10_000_000, 20_000, 1_000_000


def rate(count: int, work: Callable[[], object]) -> Callable[[], float]:
    """Runs `work` once and tells how many of `count` things it did in a second, in millions."""

    def run() -> float:
        started = time.perf_counter()
        work()
        return count / 1e6 / (time.perf_counter() - started)

    return run


def cut_group(mean: int, seq_length: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same shuffled documents cut by a loop, compiled as hard as the compiler can, and by array operations."""
    source, library = folder / "loop.c", folder / "loop.so"
    source.write_text(LOOP)
    subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], check=True)
    loop = ctypes.CDLL(str(library))
    random = np.random.default_rng(0)
    lengths = random.integers(1, 2 * mean, DOCUMENTS).astype(np.int32)
    documents = random.permutation(DOCUMENTS).astype(np.int32)
    count = int((lengths.sum(dtype=np.int64) - 1) // seq_length) + 1
    theirs, ours = np.zeros((count, 2), np.int32), np.zeros((count, 2), np.int32)
    sizes = [ctypes.c_int64(seq_length), ctypes.c_int64(count)]

    def compiled() -> None:
        read, into = ((ctypes.c_void_p(a.ctypes.data) for a in group) for group in ((lengths, documents), (theirs,)))
        loop.cut(*read, *sizes, *into)

    def arrays() -> None:
        cut_samples(lengths, documents, seq_length=seq_length, index=ours)

    compiled(), arrays()
    assert np.array_equal(theirs, ours)
    return {
        "title": f"samples of {seq_length} tokens cut from documents of about {mean}",
        "unit": "million documents/s",
        "entries": {"compiled loop": rate(DOCUMENTS, compiled), "megalite": rate(DOCUMENTS, arrays)},
        "limits": (("megalite", "compiled loop", 1.0),),
    }


def read_group(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Samples in random order: bare int64 copies of slices of the mapped file, and ours."""
    random = np.random.default_rng(0)
    with IndexedWriter(folder / "corpus", np.dtype("uint16")) as writer:
        for _ in range(100):
            lengths = random.integers(1000, 30_000, 64)
            writer.add_documents(random.integers(0, 50_000, lengths.sum()), lengths)
    corpus = IndexedCorpus(folder / "corpus")
    mapped = np.memmap(folder / "corpus.bin", np.uint16, "r")
    entries: dict[str, Callable[[], float]] = {}
    for seq_length in (1024, 4096, 8192):
        data = GPTDataset(
            corpus,
            sequences=range(len(corpus)),
            num_samples=SAMPLES,
            seq_length=seq_length,
            seed=1,
            split="train",
            cache=folder / "cache",
            vocab_size=50_000,
        )
        places = random.integers(0, len(mapped) - seq_length - 1, SAMPLES).tolist()
        order = random.integers(0, len(data), SAMPLES).tolist()

        def bare(places: list[int] = places, size: int = seq_length + 1) -> None:
            for place in places:
                mapped[place : place + size].astype(np.int64)

        def ours(order: list[int] = order, data: GPTDataset = data) -> None:
            for index in order:
                data[index]

        entries[f"bare, {seq_length}"] = rate(SAMPLES, bare)
        entries[f"megalite, {seq_length}"] = rate(SAMPLES, ours)
    return {
        "title": "samples of so many tokens read in random order",
        "unit": "million samples/s",
        "entries": entries,
        "limits": tuple((f"megalite, {n}", f"bare, {n}", 0.8) for n in (1024, 4096, 8192)),
    }


def blend_group(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The order in which the data sets of a blend take turns."""
    entries = {}
    for sets in (2, 10, 50):
        weights = np.random.default_rng(sets).dirichlet(np.ones(sets)).tolist()
        entries[f"of {sets} sets"] = rate(BLENDED, lambda weights=weights: blend_order(weights, BLENDED))  # type: ignore[misc]
    return {"title": "the order of a blend", "unit": "million samples/s", "entries": entries, "limits": ()}
