"""Documents too long to be held: read, cut and encoded in pieces, with the ids that they would have as a whole."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from megalite.data.preprocess.sentences import sentence_ends

PIECE = 1 << 18
"""Characters of a piece, about."""
WINDOW = 1000
"""Characters on each side of a seam that are encoded to see whether it shows."""
TRIES = 30
_GAPS = (re.compile(r"(?<=\S)( )(?=\S)"), re.compile(r"(?<=\n)()(?=\S)"), re.compile(r"(?<=\S)()(?=\S)"))
"""Where a text may be cut: before a space between words; between lines; where there is neither, anywhere."""
_STRING = re.compile(r'[^"\\]*+(?:(?:\\u[0-9a-fA-F]{4}|\\[^u])[^"\\]*+)*+')
_HIGH_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class Cutter:
    """Cuts texts into pieces whose ids, one after another, are those of the whole."""

    def __init__(self, encode: Callable[[Sequence[str]], list[np.ndarray]], *, sentences: bool = False) -> None:
        self.encode, self.sentences = encode, sentences

    def pieces(self, texts: Iterable[str]) -> Iterator[str]:
        """The pieces of a text that comes in any portions. Where no seam fits, a piece grows until one does."""
        held, enough = "", 2 * PIECE
        for text in texts:
            held += text
            while len(held) > enough:
                seam = self._sentence(held) if self.sentences else self._seam(held)
                if seam is None:
                    enough = 2 * len(held)
                    break
                yield held[: seam[0]]
                held, enough = held[seam[1] :], 2 * PIECE
        if held:
            yield held

    def _sentence(self, text: str) -> tuple[int, int] | None:
        # The last end might move when more text comes.
        ends = sentence_ends(text)[:-1]
        return (ends[-1], ends[-1]) if ends else None

    def _seam(self, text: str) -> tuple[int, int] | None:
        """Where the left piece ends and the right one begins: with the space between words, or without it where the
        tokenizer puts one before each text."""
        for gap in _GAPS:
            for _, match in zip(range(TRIES), gap.finditer(text, PIECE, len(text) - WINDOW), strict=False):
                end = match.start()
                left, right = text[end - WINDOW : end], text[end : end + WINDOW]
                for begin in sorted({match.start(), match.end()}):
                    whole, *parts = self.encode([left + right, left, text[begin : end + WINDOW]])
                    if np.array_equal(whole, np.concatenate(parts)):
                        return end, begin
        return None


class JsonTexts:
    """The texts of a JSON object that comes in portions: pairs of key and portion, for these keys alone.

    ValueError when it is not an object in which each of the keys has a string.
    """

    def __init__(self, portions: Iterator[str], keys: Sequence[str]) -> None:
        self.portions, self.keys = portions, keys
        self.held, self.at = "", 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        found = set()
        self._expect("{", " is not a JSON object")
        while True:
            self._expect('"', " is not JSON: a key is due")
            key = "".join(self._string())
            self._expect(":", f" is not JSON: there is no value of {key[:40]!r}")
            if self._next() == '"':
                self.at += 1
                for text in self._string():
                    if key in self.keys:
                        yield key, text
            elif key in self.keys:
                raise ValueError(f": the value of {key!r} in a line this long must be a string")
            else:
                self._skip()
            if key in self.keys and key in found:
                raise ValueError(f" has the key {key!r} twice")
            found.add(key)
            if self._next() == "}":
                break
            self._expect(",", " is not JSON: a comma or the end of the object is due")
        self.at += 1
        if self._next():
            raise ValueError(" is not JSON: something follows the object")
        for key in self.keys:
            if key not in found:
                raise ValueError(f" has no key {key!r}; --json-keys names what each line must have")

    def _more(self) -> bool:
        portion = next(self.portions, None)
        if portion is None:
            return False
        self.held, self.at = self.held[self.at :] + portion, 0
        return True

    def _next(self) -> str:
        """The next character that is not white space; nothing at the end."""
        while True:
            while self.at < len(self.held) and self.held[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.held):
                return self.held[self.at]
            if not self._more():
                return ""

    def _expect(self, character: str, otherwise: str) -> None:
        if self._next() != character:
            raise ValueError(otherwise)
        self.at += 1

    def _string(self) -> Iterator[str]:
        """The rest of a string whose quote was read."""
        while True:
            match = _STRING.match(self.held, self.at)
            assert match is not None
            end = match.end()
            ended = self.held[end : end + 1] == '"'
            # Half of a surrogate pair waits for the other half.
            if not ended and end - 6 >= self.at and _HIGH_HALF.match(self.held, end - 6, end):
                before = self.held[self.at : end - 6]
                end -= 6 * ((len(before) - len(before.rstrip("\\"))) % 2 == 0)
            try:
                yield json.loads(f'"{self.held[self.at : end]}"')
            except ValueError as error:
                raise ValueError(f" is not JSON: {error}") from error
            self.at = end
            if ended:
                self.at += 1
                return
            if len(self.held) - end > 12 or not self._more():
                raise ValueError(" is not JSON: a string does not end, or holds a wrong escape")

    def _skip(self) -> None:
        """A value that nobody asked for."""
        while True:
            try:
                _, end = json.JSONDecoder().raw_decode(self.held, self.at)
                if end < len(self.held):
                    self.at = end
                    return
            except ValueError as error:
                failure = error
            else:
                failure = ValueError("the object does not end")
            size, grown = len(self.held), False
            while len(self.held) < 2 * size and self._more():
                grown = True
            if not grown:
                raise ValueError(f" is not JSON: {failure}") from failure
