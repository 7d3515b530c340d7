"""The interface of all tokenizers.

Text is only ever text: the spelling of a special token inside it is encoded like any other characters, so an id with a
meaning, such as the end of a document, stands only where a program puts it. No kind adds ids of its own to a text.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROUND_TRIPS = {
    "runs of spaces": "a  b",
    "tabs and newlines": "a\tb\nc",
    "compatibility characters": "\u2026 \ufb01",
    "combining marks": "e\u0301",
    "rare characters": "\U00013000 \U0001f9ff",
    "NUL": "a\0b",
}
"""What some tokenizers lose, with a text to find out."""


class Tokenizer(ABC):
    """Ids are 0 to vocab_size - 1, added tokens included; `eod` ends a document."""

    vocab_size: int
    """The highest id + 1."""
    unknown: int | None = None
    """The id that stands for what the vocabulary cannot say, if there is one."""

    @property
    @abstractmethod
    def eod(self) -> int:
        """The id that ends a document; ValueError when the vocabulary has none."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end of document."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text as integers of any width; in one thread, since the caller may run many processes."""
        return [np.array(self.encode(text), np.int64) for text in texts]

    def special_tokens(self) -> dict[str, int]:
        """How the ids that a program puts are spelled, for a caller who wants the spelling in a text to mean the id."""
        return {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Arguments of `build_tokenizer` as JSON; its files are named as in `files`."""

    def files(self) -> dict[str, Path]:
        """The files that a checkpoint must carry: name in its folder, and where the file is now."""
        return {}

    def notes(self) -> list[str]:
        """What a user should know before encoding a corpus: which texts do not come back as they were."""
        lost = [what for what, text in ROUND_TRIPS.items() if self.decode(self.encode(text)) != text]
        return (
            [f"This tokenizer changes text (normalization or a closed vocabulary): {', '.join(lost)}."] if lost else []
        )


def existing_file(path: str | Path, flag: str, what: str) -> Path:
    """The path, if a file is there; ValueError names the flag."""
    if not Path(path).is_file():
        raise ValueError(f"{flag} {path}: there is no such file; give the path of {what}.")
    return Path(path)
