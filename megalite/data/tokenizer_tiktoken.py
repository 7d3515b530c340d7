"""Megatron's TikTokenizer: a list of byte sequences in the order of their ranks, after the ids of special tokens."""

import base64
import binascii
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megalite.data.tokenizer_base import Tokenizer, existing_file

PATTERNS = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""How text is cut into words: the two expressions that Megatron knows."""
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
LARGEST = 1 << 17
"""Ids where --vocab-size does not say how many, and the file has enough."""


class TikTokenizer(Tokenizer):
    """Ids 0 to num_special_tokens - 1 are special: the given names, then <SPECIAL_n>; eod is </s>.

    The others are the entries of a JSON list, of which each holds its `rank`, its place, and its `token_bytes` in
    base64; the first 256 are the bytes. ValueError says what is wrong with it.
    """

    def __init__(
        self,
        model: str | Path,
        pattern: str,
        num_special_tokens: int,
        special_tokens: Sequence[str] = (),
        vocab_size: int | None = None,
    ) -> None:
        self.path = existing_file(model, "--tokenizer-model", "a JSON list of tokens")
        names = tuple(special_tokens) or SPECIAL_TOKENS
        if len(set(names)) < len(names) or len(names) > num_special_tokens:
            raise ValueError(
                f"--tiktoken-special-tokens {' '.join(names)}: {len(names)} names for --tiktoken-num-special-tokens "
                f"{num_special_tokens} ids. Give each name once, and as many ids as there are names, or more."
            )
        self.names, self.pattern = names, pattern
        self.special = [*names, *(f"<SPECIAL_{i}>" for i in range(len(names), num_special_tokens))]
        tokens = _tokens(self.path)
        room = (vocab_size or LARGEST) - num_special_tokens
        count = min(room, len(tokens)) if vocab_size is None else room
        if not 256 <= count <= len(tokens):
            raise ValueError(
                f"--vocab-size {vocab_size or LARGEST} less --tiktoken-num-special-tokens {num_special_tokens} is "
                f"{room} tokens, but --tokenizer-model {self.path} gives 256 to {len(tokens)}. "
                f"Try --vocab-size {num_special_tokens + len(tokens)}."
            )
        self.vocab_size = num_special_tokens + count
        self._bytes = [*map(str.encode, self.special), *tokens[:count]]
        ranks = {token: num_special_tokens + i for i, token in enumerate(tokens[:count])}
        if len(ranks) < count:
            raise ValueError(f"--tokenizer-model {self.path} has the same bytes twice.")
        self._engine = _tiktoken().Encoding(
            # Without any special token the engine looks for the empty one everywhere.
            self.path.name,
            pat_str=PATTERNS[pattern],
            mergeable_ranks=ranks,
            special_tokens={"</s>": self.vocab_size},
        )

    @property
    def eod(self) -> int:
        if "</s>" not in self.names:
            raise ValueError(f"--tiktoken-special-tokens {' '.join(self.names)} lacks </s>, which ends a document.")
        return self.names.index("</s>")

    def encode(self, text: str) -> list[int]:
        return self._engine.encode_ordinary(text)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._engine.encode_to_numpy(text, disallowed_special=()) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._bytes[i] for i in ids).decode(errors="replace")

    def special_tokens(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.special)}

    def describe(self) -> dict[str, Any]:
        return {
            "tokenizer_type": "TikTokenizer",
            "tokenizer_model": "vocab.json",
            "tiktoken_pattern": self.pattern,
            "tiktoken_num_special_tokens": len(self.special),
            "tiktoken_special_tokens": list(self.names),
            "vocab_size": self.vocab_size,
        }

    def files(self) -> dict[str, Path]:
        return {"vocab.json": self.path}


def _tokens(path: Path) -> list[bytes]:
    """The bytes of each entry, in order of rank."""
    try:
        entries = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"--tokenizer-model {path} is not JSON: {error}. TikTokenizer takes Megatron's list of objects; for a file "
            f"of lines, as Llama 3 and Qwen have it, use HuggingFaceTokenizer with the model's tokenizer.json."
        ) from error
    try:
        tokens = [base64.b64decode(entry["token_bytes"], validate=True) for entry in entries]
        ordered = all(entry["rank"] == place for place, entry in enumerate(entries))
    except (TypeError, KeyError, binascii.Error) as error:
        raise ValueError(
            f'--tokenizer-model {path} is not a list such as [{{"rank": 0, "token_bytes": "AA=="}}]: {error!r}.'
        ) from error
    if not ordered or tokens[:256] != [bytes([byte]) for byte in range(256)]:
        raise ValueError(f"--tokenizer-model {path}: entries do not go by rank, or the first 256 are not the bytes.")
    return tokens


def _tiktoken() -> Any:
    try:
        import tiktoken
    except ImportError as error:
        raise ValueError('--tokenizer-type TikTokenizer needs tiktoken: pip install "megalite[data]"') from error
    return tiktoken
