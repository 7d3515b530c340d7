"""A JSONL corpus to Megatron's token files: the same bytes for any number of workers, whole or not at all."""

import glob
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalite.data.indexed import token_dtype
from megalite.data.indexed_writer import IndexedWriter
from megalite.data.preprocess.encode import Encoding, read_batches
from megalite.data.preprocess.pool import encode_in_order
from megalite.data.tokenizer import build_tokenizer


@dataclass(kw_only=True)
class Counts:
    """What one key has given so far."""

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    unknown: int = 0
    ends_in_text: int = 0

    def line(self, prefix: str) -> str:
        """The summary; what is 0 and would be a surprise otherwise is left out."""
        surprises = {
            f"{self.empty} empty documents were dropped": self.empty,
            f"{self.unknown} tokens are unknown to the tokenizer": self.unknown,
            f"{self.ends_in_text} ends of document came out of the text itself": self.ends_in_text,
        }
        whole = f"{prefix}.bin/.idx: {self.documents} documents, {self.tokens} tokens"
        return "; ".join([whole, *(text for text, count in surprises.items() if count)])


def preprocess(
    *,
    inputs: str,
    output_prefix: str,
    tokenizer: dict[str, Any],
    keys: Sequence[str] = ("text",),
    append_eod: bool = False,
    workers: int = 1,
    log_interval: int = 1000,
    say: Callable[[str], None] = print,
) -> dict[str, Counts]:
    """Encode each line's `keys` into PREFIX_KEY_document.bin/.idx; `tokenizer` are arguments of build_tokenizer.

    `inputs` is a file or a pattern of files, read in the order of their names. ValueError names what is wrong: the file
    and line, the tokenizer, a worker that died, no tokens at all; then nothing new is left under the final names.
    """
    paths = [Path(inputs)] if Path(inputs).is_file() else [Path(name) for name in sorted(glob.glob(inputs))]
    if not paths:
        raise ValueError(f"--input {inputs}: there is no such file.")
    made = build_tokenizer(**tokenizer)
    encoding = Encoding(tokenizer=tuple(tokenizer.items()), keys=tuple(dict.fromkeys(keys)), append_eod=append_eod)
    say(
        f"{tokenizer['tokenizer_type']}: {made.vocab_size} ids"
        + (f", end of document {made.eod}" if append_eod else "")
    )
    for note in made.notes():
        say(f"warning: {note}")
    prefixes = {key: f"{output_prefix}_{key}_document" for key in encoding.keys}
    counts = {key: Counts() for key in encoding.keys}
    progress = _Progress(total=sum(path.stat().st_size for path in paths), every=log_interval, say=say)
    with ExitStack() as stack:
        dtype = token_dtype(made.vocab_size)
        writers = {key: stack.enter_context(IndexedWriter(prefixes[key], dtype)) for key in encoding.keys}
        for batch, encoded in encode_in_order(encoding, read_batches(paths), workers=workers):
            for key, result in encoded.items():
                writers[key].add_documents(result.tokens, result.lengths)
                counts[key].documents += len(result.lengths)
                counts[key].tokens += len(result.tokens)
                counts[key].empty += result.empty
                counts[key].unknown += result.unknown
                counts[key].ends_in_text += result.ends_in_text
            progress.add(batch.read, len(batch.lines), sum(len(result.tokens) for result in encoded.values()))
        for key, count in counts.items():
            if not count.tokens:
                raise ValueError(
                    f"--input {inputs} gives no tokens under the key {key!r} ({count.empty} empty documents); "
                    f"nothing was written."
                )
    for key, count in counts.items():
        say(count.line(prefixes[key]))
    return counts


class _Progress:
    def __init__(self, *, total: int, every: int, say: Callable[[str], None]) -> None:
        self.total, self.every, self.say = total, every, say
        self.started = time.monotonic()
        self.read = self.documents = self.tokens = 0
        self.next = every

    def add(self, read: int, documents: int, tokens: int) -> None:
        self.read += read
        self.documents += documents
        self.tokens += tokens
        if self.documents < self.next:
            return
        self.next = (self.documents // self.every + 1) * self.every
        seconds = max(time.monotonic() - self.started, 1e-9)
        left = (self.total - self.read) / (self.read / seconds)
        self.say(
            f"{self.documents} documents, {100 * self.read / self.total:.1f}%: {self.read / seconds / 1e6:.2f} MB/s, "
            f"{self.documents / seconds:.0f} documents/s, {self.tokens / seconds:.0f} tokens/s, ETA {left:.0f} s"
        )
