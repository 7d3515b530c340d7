"""Building and reading a data set beside what could be had at most: a compiled loop, and bare slices of a mapped file.

`python benchmarks/index.py` prints a table; it needs a C compiler for the loop, and a few GB of memory.
"""

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

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
DOCUMENTS, REPEATS = 10_000_000, 5
KINDS = {"600 tokens, --seq-length 2048": (600, 2048), "60 tokens, --seq-length 1024": (60, 1024)}


def best(work: Callable[[], object]) -> float:
    """The shortest of some runs, seconds."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def compiled(folder: str) -> ctypes.CDLL:
    """The loop, compiled as hard as the compiler can."""
    source, library = Path(folder) / "loop.c", Path(folder) / "loop.so"
    source.write_text(LOOP)
    subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


def cutting(loop: ctypes.CDLL, mean: int, seq_length: int) -> tuple[float, float]:
    """Documents a second of the loop and of ours, on the same shuffled documents."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 2 * mean, DOCUMENTS).astype(np.int32)
    documents = random.permutation(DOCUMENTS).astype(np.int32)
    count = int((lengths.sum(dtype=np.int64) - 1) // seq_length) + 1
    theirs, ours = np.zeros((count, 2), np.int32), np.zeros((count, 2), np.int32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (lengths, documents, theirs)]
    sizes = [ctypes.c_int64(seq_length), ctypes.c_int64(count)]
    looped = best(lambda: loop.cut(*pointers[:2], *sizes, pointers[2]))
    blocks = best(lambda: cut_samples(lengths, documents, seq_length=seq_length, index=ours))
    assert np.array_equal(theirs, ours)
    return DOCUMENTS / looped, DOCUMENTS / blocks


def reading(folder: str, seq_length: int, samples: int = 20_000) -> tuple[float, float]:
    """Samples a second in random order: bare int64 copies of slices of the mapped file, and ours."""
    random = np.random.default_rng(0)
    with IndexedWriter(f"{folder}/corpus", np.dtype("uint16")) as writer:
        for _ in range(100):
            lengths = random.integers(1000, 30_000, 64)
            writer.add_documents(random.integers(0, 50_000, lengths.sum()), lengths)
    corpus = IndexedCorpus(f"{folder}/corpus")
    data = GPTDataset(
        corpus,
        sequences=range(len(corpus)),
        num_samples=samples,
        seq_length=seq_length,
        seed=1,
        split="train",
        cache=Path(folder) / "cache",
        vocab_size=50_000,
    )
    mapped = np.memmap(f"{folder}/corpus.bin", np.uint16, "r")
    places = random.integers(0, len(mapped) - seq_length - 1, samples).tolist()
    order = random.integers(0, len(data), samples).tolist()
    bare = best(lambda: [mapped[place : place + seq_length + 1].astype(np.int64) for place in places])
    ours = best(lambda: [data[index] for index in order])
    return samples / bare, samples / ours


def main() -> int:
    """Print the table."""
    print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, best of {REPEATS}")
    print(f"{'':44} {'at most':>14} {'ours':>14} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        loop = compiled(folder)
        for name, (mean, seq_length) in KINDS.items():
            row(f"cut {name} (documents/s)", *cutting(loop, mean, seq_length))
        for seq_length in (1024, 4096, 8192):
            with tempfile.TemporaryDirectory(dir=folder) as corpus:
                row(f"read samples of {seq_length} tokens (samples/s)", *reading(corpus, seq_length))
    for sets in (2, 10, 50):
        weights = np.random.default_rng(sets).dirichlet(np.ones(sets)).tolist()
        print(f"{f'blend of {sets} (samples/s)':44} {'':>14} {1e6 / best(lambda: blend_order(weights, 10**6)):14,.0f}")  # noqa: B023
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    return 0


def row(name: str, most: float, ours: float) -> None:
    """One line."""
    print(f"{name:44} {most:14,.0f} {ours:14,.0f} {ours / most:6.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
