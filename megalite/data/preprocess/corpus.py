"""Texts to Megatron's token files: the same bytes for any number of workers, whole or not at all."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from megalite.data.indexed_writer import IndexedWriter
from megalite.data.preprocess.batch import Batch, Done, Encoded
from megalite.data.preprocess.encode import Encoder, Encoding
from megalite.data.preprocess.long import Cutter
from megalite.data.preprocess.pool import encode_in_order
from megalite.data.preprocess.progress import Progress, Report
from megalite.data.preprocess.reader import read_batches
from megalite.data.preprocess.records import read_record
from megalite.data.preprocess.sources import Source, find_sources
from megalite.data.tokenizer import build_tokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.data.tokenizer_engine import fastest

SAMPLE = 1 << 17
"""Characters of the input on which engines are compared."""


@dataclass(kw_only=True)
class Counts:
    """What one key has given so far."""

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    unknown: int = 0
    special: int = 0

    def add(self, found: Encoded) -> None:
        """Count documents that are whole."""
        self.documents += len(found.lengths if found.sequences is None else found.sequences)
        self.tokens += int(found.lengths.sum())
        self.empty += found.empty
        self.unknown += found.unknown
        self.special += found.special

    def line(self, prefix: str) -> str:
        """The summary; what is 0 and would be a surprise otherwise is left out."""
        surprises = {
            f"{self.empty} empty documents were dropped": self.empty,
            f"{self.unknown} tokens are unknown to the tokenizer": self.unknown,
            f"{self.special} special tokens came out of the text itself": self.special,
        }
        whole = f"{prefix}.bin/.idx: {self.documents} documents, {self.tokens} tokens"
        return "; ".join([whole, *(text for text, count in surprises.items() if count)])


@dataclass(kw_only=True)
class Output:
    """The files of one key. Of a document too long to be held, the parts so far are `lengths` of its sequences."""

    writer: IndexedWriter
    eod: int | None
    sentences: bool
    counts: Counts = field(default_factory=Counts)
    lengths: list[int] = field(default_factory=list)
    unknown: int = 0
    special: int = 0

    def add(self, found: Encoded) -> None:
        """Append whole documents."""
        self.writer.add_documents(found.tokens, found.lengths, found.sequences)
        self.counts.add(found)

    def add_part(self, found: Encoded) -> None:
        """Append a part of a document."""
        self.writer.add_tokens(found.tokens)
        parts = [int(length) for length in found.lengths]
        self.lengths = [*self.lengths, *parts] if self.sentences else [sum(self.lengths) + sum(parts)]
        self.unknown += found.unknown
        self.special += found.special

    def end(self, *, keep: bool) -> None:
        """The parts are a document, or not to be kept."""
        lengths = [length for length in self.lengths if length]
        if not keep:
            self.writer.drop(sum(lengths))
        elif not lengths:
            self.counts.empty += 1
        else:
            if self.eod is not None:
                self.writer.add_tokens(np.array([self.eod]))
                lengths[-1] += 1
            self.writer.end_document(np.array(lengths))
            self.counts.documents += 1
            self.counts.tokens += sum(lengths)
            self.counts.unknown += self.unknown
            self.counts.special += self.special
        self.lengths, self.unknown, self.special = [], 0, 0


def preprocess(
    *,
    inputs: Sequence[str],
    output_prefix: str,
    encoding: Encoding,
    input_format: str = "auto",
    workers: int = 1,
    log_interval: int = 1000,
    report: str | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Counts]:
    """Encode each record's keys into PREFIX_KEY_document.bin/.idx (PREFIX_KEY_sentence with split_sentences).

    `inputs` are files, patterns of files, or -; `report` is a file for every bad record. ValueError names what is
    wrong: the file and line, the tokenizer, a worker that died, no tokens at all; then nothing new is left under the
    final names. The engine of `encoding` is chosen here.
    """
    sources, encoder, batches = open_corpus(inputs, input_format, encoding, say)
    level = "sentence" if encoding.split_sentences else "document"
    prefixes = {key: f"{output_prefix}_{key}_{level}" for key in encoding.keys}
    progress = Progress(total=sum(source.size for source in sources), every=log_interval, say=say)
    with ExitStack() as stack:
        bad = stack.enter_context(Report(report, say))
        outputs = {
            key: Output(
                writer=stack.enter_context(IndexedWriter(prefix, encoder.dtype)),
                eod=encoder.eod,
                sentences=encoding.split_sentences,
            )
            for key, prefix in prefixes.items()
        }
        broken = False
        for batch, done in encode_in_order(encoder, batches, workers=workers):
            if done.bad and encoding.on_error == "stop":
                raise ValueError(done.bad[0].line())
            broken = _write(outputs, batch, done, bad, broken=broken)
            tokens = sum(len(found.tokens) for found in done.encoded.values())
            progress.add(read=batch.read, documents=done.records, tokens=tokens)
        for key, output in outputs.items():
            if not output.counts.tokens:
                raise ValueError(
                    f"--input {' '.join(inputs)} gives no tokens under the key {key!r} "
                    f"({output.counts.empty} empty documents); nothing was written."
                )
    if bad.left_out or bad.replaced:
        say(bad.line())
    say(progress.line())
    for key, output in outputs.items():
        say(output.counts.line(prefixes[key]))
    return {key: output.counts for key, output in outputs.items()}


def open_corpus(
    inputs: Sequence[str], input_format: str, encoding: Encoding, say: Callable[[str], None]
) -> tuple[list[Source], Encoder, Iterator[Batch]]:
    """The inputs, what encodes them by the fastest engine with the tokenizer's ids, and their batches."""
    sources = find_sources(inputs, input_format)
    texts = [source.path for source in sources if source.format.startswith("text")]
    if texts and len(encoding.keys) > 1:
        raise ValueError(f"--json-keys names {len(encoding.keys)} keys, but {texts[0]} is plain text, which has none.")
    tokenizer = build_tokenizer(**dict(encoding.tokenizer))
    for note in tokenizer.notes():
        say(f"warning: {note}")
    plain = Encoder(encoding, tokenizer)
    errors = "replace" if encoding.on_error == "replace" else "strict"
    cutter = Cutter(plain.encode, sentences=encoding.split_sentences)
    batches = read_batches(sources, keys=encoding.keys, cutter=cutter, errors=errors)
    return sources, *_choose_engine(plain, tokenizer, batches, say)


def _write(outputs: dict[str, Output], batch: Batch, done: Done, bad: Report, *, broken: bool) -> bool:
    """Write a batch; whether the long document that it belongs to is broken and will be dropped."""
    # Of a long document's mistakes the first is told.
    bad.add(one for one in done.bad if not broken or one.replaced)
    broken = broken or (batch.part_of is not None and any(not one.replaced for one in done.bad))
    if batch.last:
        for output in outputs.values():
            if batch.part_of is not None or output.lengths:
                output.end(keep=batch.part_of is not None and not broken)
        return False
    for key, found in done.encoded.items():
        if batch.part_of is None:
            outputs[key].add(found)
        else:
            outputs[key].add_part(found)
    return broken


def _choose_engine(
    plain: Encoder, tokenizer: Tokenizer, batches: Iterator[Batch], say: Callable[[str], None]
) -> tuple[Encoder, Iterator[Batch]]:
    """The fastest encoder with the same ids, compared on the beginning of the input; and all batches."""
    first = next(batches, None)
    sample: list[str] = []
    keys, is_json = plain.encoding.keys, first is not None and first.is_json
    for _, data in first.records() if first else ():
        with suppress(ValueError):
            values, _ = read_record(data, keys, is_json=is_json)
            sample += [text[:SAMPLE] for texts in values.values() for text in texts]
        if sum(map(len, sample)) > SAMPLE:
            break
    recipe, why = fastest(tokenizer, sample)
    end = f", end of document {plain.eod}" if plain.eod is not None else ""
    say(f"{type(tokenizer).__name__}: {tokenizer.vocab_size} ids{end}; engine: {why}")
    chosen = plain if recipe is None else Encoder(replace(plain.encoding, recipe=recipe), tokenizer)
    return chosen, chain([] if first is None else [first], batches)
