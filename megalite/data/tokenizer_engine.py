"""Byte-level BPE on tiktoken's engine, several times as fast as `tokenizers`, where both give the same ids.

tiktoken merges the neighbours whose joint bytes have the lowest rank; `tokenizers` merges listed pairs in the order of
the list. `prove` shows that a given list makes no difference between the two:

- Each part of a merge is a byte or made earlier, and merges that make the same token stand together. So a token has
  one place in the order, after its parts.
- Each token, spelled alone, comes out as itself.

What happens between two ends of tokens does not depend on what is beyond them, since tokens only grow. So when the turn
of a token comes, its bytes are in the state that they pass through when spelled alone: neighbours that spell the token
are the listed pair, and both engines merge them.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from megalite.data.tokenizer_base import Tokenizer

Encode = Callable[[Sequence[str]], list[np.ndarray]]
"""The ids of each text."""

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How `tokenizers` cuts text into words where ByteLevel does it by itself."""
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_REST = [byte for byte in range(256) if byte not in _PRINTABLE]
LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_REST)}
"""The letter that stands for a byte in the files of a byte-level vocabulary."""
BYTES = {letter: byte for byte, letter in LETTERS.items()}


class _Table(dict[int, int]):
    """For `str.translate`: from letters to bytes, and from anything else to what is no byte."""

    def __missing__(self, letter: int) -> int:
        return 256


_TABLE = _Table({ord(letter): byte for letter, byte in BYTES.items()})

NASTY = (
    "",
    " ",
    "  two  spaces   three ",
    "\r\n\r\n\t\t x\n\n\n  y \n",
    "it's we'll I'VE 'S 'tis don''t \u2019s",
    "1234567890 3.14 1,000,000 \u0663\u00bd\u2167 \u00b2x",
    "snake_case camelCase __init__ a+=b;//c {[(<>)]} !!!???...",
    "na\u00efve e\u0301 \u00df\u1e9e \u0130\u0131 \u01c5 \ufb01 \u200b\u200d\u2060\ufeff",
    "\u6f22\u5b57\u3002\u304b\u306a \ud55c\uae00 \u0e44\u0e17\u0e22",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0645\u0631\u062d\u0628\u0627",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U00013000",
    "\x00\x01\x1f\x7f\x85\xa0\xad\u1680\u2000\u2028\u2029\u202f\u205f\u3000\U000e0001",
    "a" * 300 + " " * 300 + "\n" * 300 + "ab" * 300 + "=" * 300,
    "before <|endoftext|> after </s><s><unk><pad>[INST]",
)
"""Texts on which engines have been seen to differ."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What tiktoken needs of a `tokenizers` file."""

    pattern: str
    tokens: tuple[bytes, ...]
    """In the order in which they are made; the 256 bytes first."""
    ids: tuple[int, ...]
    """Of each token."""
    refused: tuple[str, ...]
    """Texts with one of these spellings are for `tokenizers`."""
    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]


def recipe(tokenizer: Tokenizer) -> Recipe:
    """How to build tiktoken's engine for a byte-level BPE; ValueError says why that cannot be."""
    backend = getattr(tokenizer, "backend", None)
    if backend is None:
        raise ValueError("it does not run on `tokenizers`")
    described = json.loads(backend.to_str())
    model = described["model"]
    if model.get("type") != "BPE" or described["normalizer"] is not None:
        raise ValueError("it is not BPE of the text as it is")
    if any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")):
        raise ValueError("its BPE has options beyond merges")
    vocabulary = model["vocab"]
    if not BYTES.keys() <= vocabulary.keys():
        raise ValueError("its vocabulary lacks some of the 256 bytes")
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    merges = [(left, right) for left, right in pairs]
    made = list(dict.fromkeys([*(LETTERS[byte] for byte in range(256)), *(a + b for a, b in merges)]))
    added = {token["content"]: token["special"] for token in described["added_tokens"]}
    refused = {spelling for spelling, special in added.items() if not special}
    if model.get("ignore_merges"):
        unmade = vocabulary.keys() - set(made) - added.keys()
        refused |= {_bytes(spelling).decode(errors="replace") for spelling in unmade}
    if len(refused) > 1000:
        raise ValueError(f"{len(refused)} of its tokens are not made by merges")
    return Recipe(
        pattern=_pattern(described["pre_tokenizer"]),
        tokens=tuple(map(_bytes, made)),
        ids=tuple(vocabulary[spelling] for spelling in made),
        refused=tuple(sorted(refused)),
        vocabulary=vocabulary,
        merges=merges,
    )


def _bytes(spelling: str) -> bytes:
    try:
        return spelling.translate(_TABLE).encode("latin-1")
    except UnicodeEncodeError:
        return spelling.encode()


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    """The expression that cuts text into words."""
    match (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer]):
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return GPT2_PATTERN
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return pattern
    raise ValueError("its text is not cut into words by one expression")


def prove(found: Recipe) -> None:
    """Show that the order of the merges leaves no choice (see above); ValueError names a merge that does not fit."""
    made, last = set(LETTERS.values()), ""
    for left, right in found.merges:
        token = left + right
        if not {left, right} <= made or (token in made and token != last):
            raise ValueError(f"the merge of {left!r} and {right!r} is out of order")
        made.add(token)
        last = token
    import tokenizers

    merging = tokenizers.models.BPE(found.vocabulary, found.merges)
    for token in made:
        if len(merging.tokenize(token)) != 1:
            raise ValueError(f"the token {token!r} does not come out as itself")


def tiktoken_encode(found: Recipe, tokenizer: Tokenizer) -> Encode:
    """tiktoken's engine; ValueError when it is not installed."""
    try:
        import tiktoken
    except ImportError as error:
        raise ValueError('tiktoken is not installed (pip install "megalite[data]")') from error

    # Ranks order the merges; most often the ids themselves do, and need not be looked up then.
    merged = found.ids[256:]
    in_order = all(before < after for before, after in pairwise(merged))
    ranks = dict(zip(found.tokens, found.ids if in_order else range(len(found.ids)), strict=True))
    # One special token, though none is ever allowed: without any the engine looks for the empty one everywhere.
    engine = tiktoken.Encoding(
        "bpe", pat_str=found.pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": max(ranks.values()) + 1}
    )
    ids = None if in_order else np.array(found.ids, np.int32)
    refused = re.compile("|".join(map(re.escape, found.refused))) if found.refused else None

    def encode_one(text: str) -> np.ndarray:
        if refused and refused.search(text):
            return tokenizer.encode_batch([text])[0]
        found = engine.encode_to_numpy(text, disallowed_special=())
        return found if ids is None else ids[found]

    return lambda texts: [encode_one(text) for text in texts]


def fastest(tokenizer: Tokenizer, sample: Sequence[str]) -> tuple[Recipe | None, str]:
    """What to build tiktoken's engine of, or None for the tokenizer's own, and a sentence that says why.

    tiktoken is taken when the merges are proven to leave no choice, and the ids of `sample` and of NASTY are the same.
    """
    try:
        found = recipe(tokenizer)
        prove(found)
        encode = tiktoken_encode(found, tokenizer)
    except ValueError as error:
        return None, f"the tokenizer's own: {error}"
    texts = [*NASTY, *sample]
    for text, ours, theirs in zip(texts, encode(texts), tokenizer.encode_batch(texts), strict=True):
        if not np.array_equal(ours, theirs):
            return None, f"the tokenizer's own: tiktoken gives other ids for {text[:40]!r}"
    return found, f"tiktoken, proven to give the same ids ({sum(map(len, texts))} characters compared as well)"


def with_special(encode: Encode, special: dict[str, int]) -> Encode:
    """`encode`, but the spellings of special tokens become their ids."""
    longest_first = sorted(special, key=len, reverse=True)
    pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def encode_special(texts: Sequence[str]) -> list[np.ndarray]:
        parts = [[part for part in pattern.split(text) if part] for text in texts]
        plain = iter(encode([part for text in parts for part in text if part not in special]))
        return [
            np.concatenate(
                [np.array([special[part]]) if part in special else next(plain) for part in text] or [np.empty(0, int)]
            )
            for text in parts
        ]

    return encode_special
