"""What a long run says while it lasts, and what was wrong with its input."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from megalite.data.preprocess.batch import Bad

SHOWN = 10
"""Bad records that are named on the screen."""


class Progress:
    """Says every `every` documents how fast it goes, and when it will end, where the size is known."""

    def __init__(self, *, total: int, every: int, say: Callable[[str], None]) -> None:
        self.total, self.every, self.say = total, every, say
        self.started = time.monotonic()
        self.read = self.documents = self.tokens = 0
        self.next = every

    def add(self, *, read: int, documents: int, tokens: int) -> None:
        """Count what has been done."""
        self.read += read
        self.documents += documents
        self.tokens += tokens
        if self.documents >= self.next:
            self.next = (self.documents // self.every + 1) * self.every
            self.say(self.line())

    def line(self) -> str:
        """So far."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        share, left = "", ""
        if 0 < self.read <= self.total:
            share = f", {100 * self.read / self.total:.1f}%"
            left = f", ETA {(self.total - self.read) / (self.read / seconds):.0f} s"
        return (
            f"{self.documents} documents{share}: {self.read / seconds / 1e6:.2f} MB/s, "
            f"{self.documents / seconds:.0f} documents/s, {self.tokens / seconds:.0f} tokens/s{left}"
        )


class Report(AbstractContextManager["Report"]):
    """The bad records: counted, the first ten told, all of them written to a file when there is one (JSON lines)."""

    def __init__(self, path: str | None, say: Callable[[str], None]) -> None:
        self.say = say
        self.left_out = self.replaced = 0
        self.file = Path(path).open("w", encoding="utf-8") if path else None  # noqa: SIM115

    def add(self, bad: Iterable[Bad]) -> None:
        """Count and tell."""
        for one in bad:
            if self.left_out + self.replaced < SHOWN:
                self.say(f"{'replaced' if one.replaced else 'left out'}: {one.line()}")
            self.left_out += not one.replaced
            self.replaced += one.replaced
            if self.file:
                place = {"file": one.path, **({one.unit: one.number} if one.unit else {})}
                action = "replaced" if one.replaced else "left out"
                self.file.write(json.dumps({**place, "why": one.why.strip(" :"), "action": action}) + "\n")

    def line(self) -> str:
        """The sum."""
        return f"{self.left_out} bad records were left out, {self.replaced} had characters replaced"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.file:
            self.file.close()
