"""Text to token files: ours, the bare tokenizers on the same texts in memory, and other programs if installed."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
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


def tokenize_group(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Million tokens a second, from a file of JSON lines to the finished pair of files; the bare ones only encode."""
    source, files = _prepare(args, folder)
    texts = [json.loads(line)["text"] for line in source.open(encoding="utf-8")]
    tokenizer = build_tokenizer(**files)
    tokens = sum(map(len, _bare_tiktoken(files)(texts)))
    entries: dict[str, Callable[[], float]] = {}
    for processes in (1, 2):
        for name, make in (("tiktoken", _bare_tiktoken), ("tokenizers", _bare_tokenizers)):
            entries[f"bare {name}, {processes}"] = partial(_bare, make, files, texts, processes, tokens)
        entries[f"megalite, {processes}"] = partial(_ours, source, files, folder, processes, tokens)
        if find_spec("datasets"):
            entries[f"datasets.map, {processes}"] = partial(_datasets, source, files, folder, processes, tokens)
    if find_spec("datatrove"):
        entries["datatrove, 1"] = partial(_datatrove, source, tokenizer, folder, tokens)
    limits = [(f"megalite, {n}", f"bare tiktoken, {n}", 0.95) for n in (1, 2)]
    limits += [(f"megalite, {n}", f"{peer}, {n}", 1.0) for n in (1, 2) for peer in ("datasets.map", "datatrove")]
    size = source.stat().st_size / 1e6
    title = f"{size:.0f} MB of JSON lines, {tokens / 1e6:.1f} million tokens, by 1 and 2 processes"
    return {"title": title, "unit": "million tokens/s", "entries": entries, "limits": tuple(limits)}


def write_group(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """GB a second to disk, flushed: our pair of files beside the same bytes written plainly."""
    tokens = np.random.default_rng(0).integers(0, 50257, 1 << 18, np.uint16)
    lengths = np.full(1 << 8, 1 << 10)
    times = int(args.megabytes * 1e6 / tokens.nbytes) + 1

    def raw() -> float:
        started = time.perf_counter()
        with (folder / "raw").open("wb") as file:
            for _ in range(times):
                file.write(tokens.tobytes())
            file.flush()
            os.fsync(file.fileno())
        return times * tokens.nbytes / 1e9 / (time.perf_counter() - started)

    def ours() -> float:
        started = time.perf_counter()
        with IndexedWriter(folder / "pair", tokens.dtype) as writer:
            for _ in range(times):
                writer.add_documents(tokens, lengths)
        return times * tokens.nbytes / 1e9 / (time.perf_counter() - started)

    title = f"{times * tokens.nbytes / 1e6:.0f} MB of tokens to disk"
    return {
        "title": title,
        "unit": "GB/s",
        "entries": {"raw": raw, "megalite": ours},
        "limits": (("megalite", "raw", 0.8),),
    }


def _prepare(args: argparse.Namespace, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The input, repeated until it is large enough, and the tokenizer's files."""
    begin = Path(args.input) if args.input else folder / "begin.jsonl"
    if not args.input:
        build_stdlib_corpus(begin)
    source = folder / "corpus.jsonl"
    with source.open("wb") as file:
        while file.tell() < args.megabytes * 1e6:
            file.write(begin.read_bytes())
    if args.vocab_file:
        return source, {
            "tokenizer_type": "GPT2BPETokenizer",
            "vocab_file": Path(args.vocab_file).resolve(),
            "merge_file": Path(args.merge_file).resolve(),
        }
    train_tokenizer([str(begin)], str(folder / "bpe"), vocab_size=8000, model_type="byte-level-bpe")
    return source, {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": folder / "bpe"}


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


def _bare(make: Callable[..., Any], files: dict[str, Any], texts: list[str], processes: int, tokens: int) -> float:
    """The rate at which texts in memory become lists of ids: the slowest process, without its start."""
    context = get_context("spawn")
    barrier, results = context.Barrier(processes), context.SimpleQueue()
    shares = [texts[n::processes] for n in range(processes)]
    started = [context.Process(target=_encode, args=(make, files, share, barrier, results)) for share in shares]
    for process in started:
        process.start()
    seconds = max(results.get() for _ in started)
    for process in started:
        process.join()
    return tokens / 1e6 / seconds


def _encode(make: Callable[..., Any], files: dict[str, Any], texts: list[str], barrier: Any, results: Any) -> None:
    encode = make(files)
    encode(texts[:2])
    barrier.wait()
    started = time.perf_counter()
    encode(texts)
    results.put(time.perf_counter() - started)


def _ours(source: Path, files: dict[str, Any], folder: Path, workers: int, tokens: int) -> float:
    """The whole program as a user runs it, its start and the proof of the engine included."""
    flags = [word for name, value in files.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "tools/preprocess_data.py", "--input", str(source), "--workers", str(workers)]
    started = time.perf_counter()
    subprocess.run(
        [*command, "--output-prefix", str(folder / "out"), *flags], cwd=ROOT, check=True, capture_output=True
    )
    return tokens / 1e6 / (time.perf_counter() - started)


def _datasets(source: Path, files: dict[str, Any], folder: Path, processes: int, tokens: int) -> float:
    import datasets

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    backend: Any = build_tokenizer(**files).backend  # type: ignore[attr-defined]
    cache = folder / "datasets"
    started = time.perf_counter()
    data = datasets.load_dataset("json", data_files=str(source), cache_dir=str(cache), split="train")
    data.map(
        lambda rows: {"ids": [one.ids for one in backend.encode_batch(rows["text"])]},
        batched=True, num_proc=processes, remove_columns=data.column_names, load_from_cache_file=False,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    shutil.rmtree(cache)
    return tokens / 1e6 / seconds


def _datatrove(source: Path, tokenizer: Any, folder: Path, tokens: int) -> float:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    saved, output = folder / "tokenizer.json", folder / "datatrove"
    tokenizer.backend.save(str(saved))
    started = time.perf_counter()
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(source.parent), glob_pattern=source.name),
            DocumentTokenizer(str(output), tokenizer_name_or_path=str(saved), eos_token=None, shuffle_documents=False),
        ],
        logging_dir=str(folder / "logs"),
        skip_completed=False,
    ).run()
    seconds = time.perf_counter() - started
    shutil.rmtree(output)
    return tokens / 1e6 / seconds
