"""The inputs, read in batches of bytes; memory does not grow with their size, nor with that of a document."""

import codecs
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, BinaryIO

from megalite.data.preprocess.batch import BOM, REPLACED, Bad, Batch
from megalite.data.preprocess.long import Cutter, JsonTexts
from megalite.data.preprocess.records import characters_only, half_pair
from megalite.data.preprocess.sources import STDIN, Counter, Source, open_source

BATCH_BYTES = 1 << 20
LONG = 1 << 24
"""A record of more bytes is read in pieces."""


def read_batches(
    sources: Sequence[Source], *, keys: Sequence[str], cutter: Cutter, errors: str = "strict"
) -> Iterator[Batch]:
    """The batches of all inputs in order. What is wrong with an input is a batch of its own; then the next input comes.

    `errors` is "replace" where what is not a character in a long document becomes U+FFFD.
    """
    for source in sources:
        batch = None
        try:
            with open_source(source) as (file, counter):
                for batch in _Input(source, file, counter, keys, cutter, errors).batches():
                    yield batch
        except ValueError as error:
            after = batch.first + batch.data.count(b"\n") if batch else 1
            unit = batch.unit if batch else ""
            yield Batch(
                path=source.path, last=True, bad=Bad(path=source.path, number=after, unit=unit, why=f": {error}")
            )


class _Input:
    def __init__(
        self, source: Source, file: BinaryIO, counter: Counter, keys: Sequence[str], cutter: Cutter, errors: str
    ) -> None:
        self.source, self.file, self.counter = source, file, counter
        self.keys, self.cutter, self.errors = keys, cutter, errors
        self.told, self.replaced = 0, False

    def batches(self) -> Iterator[Batch]:
        match self.source.format:
            case "parquet":
                yield from self._rows()
            case "text":
                yield from self._document()
            case _:
                yield from self._lines(is_json=self.source.format == "jsonl")

    def _batch(self, **facts: Any) -> Batch:
        read, self.told = self.counter.read_bytes - self.told, self.counter.read_bytes
        return Batch(path=self.source.path, read=read, **facts)

    def _chunks(self) -> Iterator[bytes]:
        """About BATCH_BYTES at a time; all that comes before a damage."""
        parts: list[bytes] = []
        size, failure = 0, None
        while True:
            try:
                part = self.file.read1(BATCH_BYTES)  # type: ignore[attr-defined]
            except (EOFError, OSError, zlib.error) as error:
                part, failure = b"", error
            parts.append(part)
            size += len(part)
            if size >= BATCH_BYTES or (size and not part):
                yield b"".join(parts)
                parts, size = [], 0
            if not part:
                break
        if failure:
            raise failure

    def _lines(self, *, is_json: bool) -> Iterator[Batch]:
        number, rest = 1, b""
        chunks = self._chunks()
        for chunk in chunks:
            end = chunk.rfind(b"\n") + 1
            if end:
                data, rest = rest + chunk[:end], chunk[end:]
                yield self._batch(data=data, first=number, is_json=is_json)
                number += data.count(b"\n")
                continue
            rest += chunk
            if len(rest) > LONG:
                line = _Line(rest, chunks)
                texts = self._decoded(iter(line))
                found: Iterator[tuple[str, str]] = (
                    iter(JsonTexts(texts, self.keys)) if is_json else ((self.keys[0], text) for text in texts)
                )
                yield from self._parts(found, number, "line")
                for _ in line:
                    pass  # What follows a mistake in it.
                number, rest = number + 1, line.rest
        if rest:
            yield self._batch(data=rest, first=number, is_json=is_json)

    def _document(self) -> Iterator[Batch]:
        chunks, data = self._chunks(), b""
        for chunk in chunks:
            data += chunk
            if len(data) > LONG:
                texts = self._decoded(chain([data], chunks))
                yield from self._parts(((self.keys[0], text) for text in texts), 1, "")
                return
        yield self._batch(data=data, unit="", is_json=False)

    def _rows(self) -> Iterator[Batch]:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise ValueError("a .parquet file needs pyarrow: pip install pyarrow") from error
        if self.source.path == STDIN:
            raise ValueError("parquet cannot be read from standard input")
        file = pyarrow.parquet.ParquetFile(self.source.path)
        missing = [key for key in self.keys if key not in file.schema_arrow.names]
        if missing:
            raise ValueError(f"there is no column {missing[0]!r}; the columns are {', '.join(file.schema_arrow.names)}")
        number = first = 1
        lines: list[bytes] = []
        size = 0
        weight = self.source.size / max(file.metadata.num_rows, 1)
        for table in file.iter_batches(batch_size=256, columns=list(self.keys)):
            for row in table.to_pylist():
                line = json.dumps(row, ensure_ascii=False, default=repr).encode("utf-8", "surrogatepass")
                number += 1
                lines.append(line)
                size += len(line)
                if size >= BATCH_BYTES:
                    self.counter.read_bytes = int(weight * (number - 1))
                    yield from self._table(lines, first)
                    first, lines, size = number, [], 0
        self.counter.read_bytes = self.source.size
        yield from self._table(lines, first)

    def _table(self, lines: list[bytes], first: int) -> Iterator[Batch]:
        if len(lines) == 1 and len(lines[0]) > LONG:
            found = JsonTexts(iter([lines[0].decode()]), self.keys)
            yield from self._parts(iter(found), first, "row")
        elif lines:
            yield self._batch(data=b"\n".join(lines), first=first, unit="row")

    def _decoded(self, chunks: Iterator[bytes]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        for n, chunk in enumerate(chain(chunks, [b""])):
            state, data = decoder.getstate(), chunk.removeprefix(BOM) if n == 0 else chunk
            try:
                yield decoder.decode(data, not chunk)
            except UnicodeDecodeError as error:
                if self.errors == "strict":
                    raise ValueError(f" is not UTF-8: {error}") from error
                self.replaced = True
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                decoder.setstate(state)
                yield decoder.decode(data, not chunk)

    def _characters(self, found: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        for key, text in found:
            half = half_pair(text)
            if half and self.errors == "strict":
                raise ValueError(f" cannot be encoded: {half} alone is not a character")
            self.replaced |= half is not None
            yield key, characters_only(text) if half else text

    def _parts(self, found: Iterator[tuple[str, str]], number: int, unit: str) -> Iterator[Batch]:
        """A long record: its pieces, and an end that says whether they are a document."""
        facts: dict[str, Any] = {"first": number, "unit": unit, "is_json": False}
        bad, self.replaced = None, False
        try:
            for key, texts in groupby(self._characters(found), itemgetter(0)):
                for piece in self.cutter.pieces(text for _, text in texts):
                    yield self._batch(data=piece.encode(), part_of=key, **facts)
            if self.replaced:
                bad = Bad(path=self.source.path, number=number, unit=unit, why=REPLACED, replaced=True)
        except ValueError as error:
            bad = Bad(path=self.source.path, number=number, unit=unit, why=str(error))
        yield self._batch(part_of="", last=True, bad=bad, **facts)


class _Line:
    """The rest of a long line, chunk by chunk; `rest` is what follows it."""

    def __init__(self, begun: bytes, chunks: Iterator[bytes]) -> None:
        self.chunks, self.next, self.rest = chunks, begun, b""

    def __iter__(self) -> Iterator[bytes]:
        while self.next:
            data, end = self.next, self.next.find(b"\n")
            if end >= 0:
                self.next, self.rest = b"", data[end + 1 :]
                yield data[:end].removesuffix(b"\r")
                return
            # The reader may stop here, at a mistake, and another go on.
            self.next = next(self.chunks, b"")
            if data.endswith(b"\r"):
                # It may belong to the line end.
                data, self.next = data[:-1], b"\r" * bool(self.next) + self.next
            yield data
