"""Text to token files: ours, the bare tokenizers on the same texts in memory, and other programs if installed."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from megalite.data.indexed_writer import IndexedWriter
from megalite.data.preprocess.stdlib import build_stdlib_corpus
from megalite.data.preprocess.train import train_tokenizer
from megalite.data.tokenizer import build_tokenizer
from megalite.data.tokenizer_engine import recipe

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = 400_000_000
"""Bytes of tokens, so many that the disk is measured and not what a file takes to appear."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """JSON lines, and how many tokens they are."""

    path: Path
    texts: list[str]
    tokens: int


def tokenize_group(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Million tokens a second, from a file of JSON lines to the finished pair of files; the bare ones only encode.

    Without what each takes to start: ours by the difference to a run on a twentieth. The slow ones get a tenth.
    """
    begin, files = _prepare(args, folder)
    encode = _bare_tiktoken(files)
    whole, tenth, twentieth = (_input(begin, folder, args.megabytes / part, encode) for part in (1, 10, 20))
    entries: dict[str, Callable[[], float]] = {}
    for processes in (1, 2):
        entries[f"bare tiktoken, {processes}"] = partial(_bare, _bare_tiktoken, files, whole, processes)
        entries[f"megalite, {processes}"] = partial(_ours, whole, twentieth, files, folder, processes)
        entries[f"bare tokenizers, {processes}"] = partial(_bare, _bare_tokenizers, files, tenth, processes)
        if find_spec("datasets"):
            entries[f"datasets.map, {processes}"] = partial(_datasets, tenth, files, folder, processes)
    if find_spec("datatrove"):
        entries["datatrove, 1"] = partial(_datatrove, tenth, files, folder)
    limits = [(f"megalite, {n}", f"bare tiktoken, {n}", 0.95) for n in (1, 2)]
    limits += [(f"megalite, {n}", f"{peer}, {n}", 1.0) for n in (1, 2) for peer in ("datasets.map", "datatrove")]
    size = whole.path.stat().st_size / 1e6
    title = f"{size:.0f} MB of JSON lines, {whole.tokens / 1e6:.1f} million tokens, by 1 and 2 processes"
    return {"title": title, "unit": "million tokens/s", "entries": entries, "limits": tuple(limits)}


def write_group(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """GB a second to disk, flushed: our pair of files beside the same bytes written plainly."""
    tokens = np.random.default_rng(0).integers(0, 50257, 1 << 18, np.uint16)
    lengths = np.full(1 << 8, 1 << 10)
    times = int(WRITTEN / tokens.nbytes)

    def rate(write: Callable[[], None]) -> float:
        started = time.perf_counter()
        write()
        seconds = time.perf_counter() - started
        for path in folder.iterdir():
            path.unlink()
        return times * tokens.nbytes / 1e9 / seconds

    def raw() -> None:
        with (folder / "raw").open("wb") as file:
            for _ in range(times):
                file.write(tokens.data)
            file.flush()
            os.fsync(file.fileno())

    def ours() -> None:
        with IndexedWriter(folder / "pair", tokens.dtype) as writer:
            for _ in range(times):
                writer.add_documents(tokens, lengths)

    title = f"{times * tokens.nbytes / 1e6:.0f} MB of tokens to disk"
    return {
        "title": title,
        "unit": "GB/s",
        "entries": {"raw": partial(rate, raw), "megalite": partial(rate, ours)},
        "limits": (("megalite", "raw", 0.8),),
    }


def _prepare(args: argparse.Namespace, folder: Path) -> tuple[Path, dict[str, Any]]:
    """What the input repeats, and the tokenizer's files."""
    begin = Path(args.input) if args.input else folder / "begin.jsonl"
    if not args.input:
        build_stdlib_corpus(begin)
    if args.vocab_file:
        return begin, {
            "tokenizer_type": "GPT2BPETokenizer",
            "vocab_file": Path(args.vocab_file).resolve(),
            "merge_file": Path(args.merge_file).resolve(),
        }
    train_tokenizer([str(begin)], str(folder / "bpe"), vocab_size=8000, model_type="byte-level-bpe")
    return begin, {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": folder / "bpe"}


def _input(begin: Path, folder: Path, megabytes: float, encode: Callable[[list[str]], list[list[int]]]) -> Input:
    """Lines again and again, up to this size."""
    path = folder / f"{megabytes:g}.jsonl"
    lines = begin.read_bytes().splitlines(keepends=True)
    with path.open("wb") as file:
        for line in cycle(lines):
            if file.tell() >= megabytes * 1e6:
                break
            file.write(line)
    texts = [json.loads(line)["text"] for line in path.open(encoding="utf-8")]
    unique = sorted(set(texts))
    known = dict(zip(unique, map(len, encode(unique)), strict=True))
    return Input(path=path, texts=texts, tokens=sum(known[text] for text in texts))


def _bare_tiktoken(files: dict[str, Any]) -> Callable[[list[str]], list[list[int]]]:
    import tiktoken

    found = recipe(build_tokenizer(**files))
    ranks = {token: rank for rank, token in enumerate(found.tokens)}
    engine = tiktoken.Encoding("bare", pat_str=found.pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda texts: [engine.encode_ordinary(text) for text in texts]


def _bare_tokenizers(files: dict[str, Any]) -> Callable[[list[str]], list[list[int]]]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    backend: Any = build_tokenizer(**files).backend  # type: ignore[attr-defined]
    # Some at a time, as anyone would: an encoding holds far more than ids.
    groups = lambda texts: (texts[at : at + 100] for at in range(0, len(texts), 100))  # noqa: E731
    return lambda texts: [one.ids for group in groups(texts) for one in backend.encode_batch_fast(group)]


def _bare(make: Callable[..., Any], files: dict[str, Any], given: Input, processes: int) -> float:
    """The rate at which texts in memory become lists of ids: the slowest process, without its start."""
    context = get_context("spawn")
    barrier, results = context.Barrier(processes), context.SimpleQueue()
    shares = [given.texts[n::processes] for n in range(processes)]
    started = [context.Process(target=_encode, args=(make, files, share, barrier, results)) for share in shares]
    for process in started:
        process.start()
    seconds = max(results.get() for _ in started)
    for process in started:
        process.join()
    return given.tokens / 1e6 / seconds


def _encode(make: Callable[..., Any], files: dict[str, Any], texts: list[str], barrier: Any, results: Any) -> None:
    encode = make(files)
    encode(texts[:2])
    barrier.wait()
    started = time.perf_counter()
    encode(texts)
    results.put(time.perf_counter() - started)


def _ours(given: Input, start: Input, files: dict[str, Any], folder: Path, workers: int) -> float:
    """The whole program as a user runs it, less a run on so little that it is mostly start."""
    flags = [word for name, value in files.items() for word in (f"--{name.replace('_', '-')}", str(value))]

    def seconds(source: Path) -> float:
        command = [sys.executable, "tools/preprocess_data.py", "--input", str(source), "--workers", str(workers)]
        started = time.perf_counter()
        subprocess.run(
            [*command, "--output-prefix", str(folder / "out"), *flags], cwd=ROOT, check=True, capture_output=True
        )
        return time.perf_counter() - started

    return (given.tokens - start.tokens) / 1e6 / (seconds(given.path) - seconds(start.path))


def _datasets(given: Input, files: dict[str, Any], folder: Path, processes: int) -> float:
    import datasets

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    backend: Any = build_tokenizer(**files).backend  # type: ignore[attr-defined]
    cache = folder / "datasets"
    started = time.perf_counter()
    data = datasets.load_dataset("json", data_files=str(given.path), cache_dir=str(cache), split="train")
    data.map(
        lambda rows: {"ids": [one.ids for one in backend.encode_batch(rows["text"])]},
        batched=True, num_proc=processes, remove_columns=data.column_names, load_from_cache_file=False,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    shutil.rmtree(cache)
    return given.tokens / 1e6 / seconds


def _datatrove(given: Input, files: dict[str, Any], folder: Path) -> float:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    saved, output = folder / "tokenizer.json", folder / "datatrove"
    backend: Any = build_tokenizer(**files).backend  # type: ignore[attr-defined]
    backend.save(str(saved))
    started = time.perf_counter()
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(given.path.parent), glob_pattern=given.path.name),
            DocumentTokenizer(str(output), tokenizer_name_or_path=str(saved), eos_token=None, shuffle_documents=False),
        ],
        logging_dir=str(folder / "logs"),
        skip_completed=False,
    ).run()
    seconds = time.perf_counter() - started
    shutil.rmtree(output)
    return given.tokens / 1e6 / seconds
