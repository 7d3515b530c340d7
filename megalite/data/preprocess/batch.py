"""What goes to the workers and what comes back."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BOM = b"\xef\xbb\xbf"
REPLACED = ": what is not a character became U+FFFD"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Neighbouring records of one input, as bytes; or a part of a document too long to be held."""

    path: str
    data: bytes = b""
    first: int = 1
    """The number of the first record."""
    unit: str = "line"
    """What is numbered: lines, rows, or nothing ("") where a file is one record."""
    is_json: bool = True
    """Whether a record is a JSON object, or itself the text."""
    read: int = 0
    """Bytes of the input that this stands for."""
    part_of: str | None = None
    """The key of the long document that this is a part of; "" only ends one."""
    last: bool = False
    """Whether the long record ends here."""
    bad: "Bad | None" = None
    """What is wrong with the input at this place."""

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Each record with its number. Only a newline ends a line: U+2028 and the like are text."""
        if not self.unit:
            yield self.first, self.data.removeprefix(BOM)
            return
        for number, line in enumerate(self.data.split(b"\n"), self.first):
            text = line.removeprefix(BOM) if number == 1 else line
            if text.strip():
                yield number, text.removesuffix(b"\r")

    def wrong(self, number: int, why: str, *, replaced: bool = False) -> "Bad":
        """What is wrong with a record."""
        return Bad(path=self.path, number=number, unit=self.unit, why=why, replaced=replaced)


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A record that could not be taken as it is."""

    path: str
    number: int
    unit: str
    why: str
    replaced: bool = False
    """Whether a document was made of it all the same; otherwise it was left out."""

    def line(self) -> str:
        """For the screen."""
        return f"{self.path}, {self.unit} {self.number}{self.why}" if self.unit else f"{self.path}{self.why}"


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The documents of a batch under one key, those without a token left out."""

    tokens: np.ndarray
    lengths: np.ndarray
    """Of each sequence."""
    sequences: np.ndarray | None = None
    """How many each document has; None: one each."""
    empty: int = 0
    """Documents without a token."""
    unknown: int = 0
    """Tokens that stand for text outside the vocabulary."""
    special: int = 0
    """Special tokens that came out of the text itself."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A batch as tokens."""

    encoded: dict[str, Encoded]
    bad: tuple[Bad, ...] = ()
    records: int = 0
