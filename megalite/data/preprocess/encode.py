"""Lines of JSON to token ids: what a worker does with a batch of lines."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from megalite.data.indexed import token_dtype
from megalite.data.tokenizer import build_tokenizer
from megalite.data.tokenizer_base import Tokenizer

BATCH_BYTES = 1 << 18
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """What to take from each line and how to encode it."""

    tokenizer: tuple[tuple[str, Any], ...]
    """Arguments of build_tokenizer, as pairs: each worker makes its own."""
    keys: tuple[str, ...]
    append_eod: bool


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Neighbouring lines of one file; those without anything but white space are left out."""

    path: str
    lines: tuple[tuple[int, bytes], ...]
    """Line number from 1, and its bytes."""
    read: int
    """Bytes of the file that this batch stands for, blank lines included."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The documents of a batch under one key, those without a token left out."""

    tokens: np.ndarray
    lengths: np.ndarray
    empty: int
    """Documents without a token."""
    unknown: int
    """Tokens that stand for text outside the vocabulary."""
    ends_in_text: int
    """Ends of document that came out of the text itself."""


def read_batches(paths: Sequence[Path]) -> Iterator[Batch]:
    """The lines of the files in order. Only a newline ends a line: U+2028 and the like are text."""
    for path in paths:
        with path.open("rb") as file:
            lines: list[tuple[int, bytes]] = []
            read = 0
            for number, line in enumerate(file, 1):
                read += len(line)
                text = line.removeprefix(BOM) if number == 1 else line
                if text.strip():
                    lines.append((number, text))
                if read >= BATCH_BYTES:
                    yield Batch(path=str(path), lines=tuple(lines), read=read)
                    lines, read = [], 0
            if read:
                yield Batch(path=str(path), lines=tuple(lines), read=read)


def encode_batch(encoding: Encoding, batch: Batch) -> dict[str, Encoded]:
    """The documents of a batch by key. ValueError names the file and the line at fault."""
    tokenizer = _tokenizer(encoding.tokenizer)
    records = [_record(batch.path, number, line, encoding.keys) for number, line in batch.lines]
    encoded = {}
    for key in encoding.keys:
        texts = [record[key] for record in records]
        try:
            documents = tokenizer.encode_batch(texts)
        except Exception:  # Whatever the library raises, the user needs the line.
            documents = [
                _encode_line(tokenizer, text, batch.path, number)
                for text, (number, _) in zip(texts, batch.lines, strict=True)
            ]
        encoded[key] = _pack(documents, tokenizer, append_eod=encoding.append_eod)
    return encoded


@lru_cache(maxsize=1)
def _tokenizer(arguments: tuple[tuple[str, Any], ...]) -> Tokenizer:
    """One for the whole life of a worker."""
    return build_tokenizer(**dict(arguments))


def _record(path: str, number: int, line: bytes, keys: Sequence[str]) -> dict[str, str]:
    where = f"{path}, line {number}"
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON in UTF-8: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f'{where} is not a JSON object such as {{"text": "..."}}')
    for key in keys:
        if key not in record:
            raise ValueError(f"{where} has no key {key!r}; --json-keys names what each line must have")
        if not isinstance(record[key], str):
            raise ValueError(f"{where}: the value of {key!r} is {type(record[key]).__name__}, not a string")
    return record


def _encode_line(tokenizer: Tokenizer, text: str, path: str, number: int) -> list[int]:
    try:
        return tokenizer.encode(text)
    except Exception as error:
        # Half of a surrogate pair can be written in JSON, but it is not a character.
        half = next((f"U+{ord(c):04X}" for c in text if "\ud800" <= c <= "\udfff"), None)
        reason = f"{half} alone is not a character" if half else error
        raise ValueError(f"{path}, line {number} cannot be encoded: {reason}") from error


def _pack(documents: list[list[int]], tokenizer: Tokenizer, *, append_eod: bool) -> Encoded:
    full = [document for document in documents if document]
    end = [tokenizer.eod] if append_eod else []
    return Encoded(
        tokens=np.array([i for document in full for i in document + end], token_dtype(tokenizer.vocab_size)),
        lengths=np.array([len(document) + len(end) for document in full], np.int64),
        empty=len(documents) - len(full),
        unknown=0 if tokenizer.unknown is None else sum(document.count(tokenizer.unknown) for document in full),
        ends_in_text=sum(document.count(tokenizer.eod) for document in full) if append_eod else 0,
    )
