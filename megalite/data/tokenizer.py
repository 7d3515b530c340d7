"""Which tokenizer the flags ask for, and how one is rebuilt from the files that a checkpoint carries."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from megalite.data.tokenizer_base import Tokenizer, existing_file
from megalite.data.tokenizer_bpe import GPT2BPETokenizer, HuggingFaceTokenizer
from megalite.data.tokenizer_tiktoken import TikTokenizer


class SentencePieceTokenizer(Tokenizer):
    """A sentencepiece model with its own ids: eod is its </s>."""

    def __init__(self, model: str | Path) -> None:
        self.path = existing_file(model, "--tokenizer-model", "a sentencepiece model")
        with self.path.open("rb") as file:
            head = file.read(200)
        if re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", head):
            raise ValueError(
                f"--tokenizer-model {self.path} is a tiktoken file, as Llama 3 has it, not a sentencepiece model. "
                f"Use --tokenizer-type HuggingFaceTokenizer with the model's folder that holds tokenizer.json."
            )
        try:
            self.model = sentencepiece.SentencePieceProcessor(model_file=str(self.path))
        except (RuntimeError, OSError) as error:
            raise ValueError(f"--tokenizer-model {self.path} is not a sentencepiece model: {error}") from error
        self.vocab_size = self.model.get_piece_size()
        self.unknown = self.model.unk_id()

    @property
    def eod(self) -> int:
        if self.model.eos_id() < 0:
            raise ValueError(f"the sentencepiece model {self.path} has no end of sentence; train one with eos_id.")
        return self.model.eos_id()

    def encode(self, text: str) -> list[int]:
        return self.model.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(ids, np.int64) for ids in self.model.encode(list(texts), num_threads=1)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.model.decode(list(ids))

    def special_tokens(self) -> dict[str, int]:
        return {self.model.id_to_piece(i): i for i in range(self.vocab_size) if self.model.is_control(i)}

    def describe(self) -> dict[str, Any]:
        return {"tokenizer_type": "SentencePieceTokenizer", "tokenizer_model": "tokenizer.model"}

    def files(self) -> dict[str, Path]:
        return {"tokenizer.model": self.path}

    def notes(self) -> list[str]:
        if any(map(self.model.is_byte, range(self.vocab_size))):
            return super().notes()
        return [*super().notes(), "This model has no byte fallback: what is not in its vocabulary becomes <unk>."]


class ByteLevelTokenizer(Tokenizer):
    """The 256 bytes of UTF-8, and 256 as the end of a document; no files, no training."""

    vocab_size = 257
    eod = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def describe(self) -> dict[str, Any]:
        return {"tokenizer_type": "ByteLevelTokenizer"}


class NullTokenizer(Tokenizer):
    """Ids written as numbers, separated by white space; the highest, vocab_size - 1, ends a document."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @property
    def eod(self) -> int:
        return self.vocab_size - 1

    def encode(self, text: str) -> list[int]:
        ids = [int(word) for word in text.split()]
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"the id {i} is not one of 0 to {self.eod} (--vocab-size {self.vocab_size})")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def describe(self) -> dict[str, Any]:
        return {"tokenizer_type": "NullTokenizer", "vocab_size": self.vocab_size}

    def notes(self) -> list[str]:
        return []


_TIKTOKEN = ("tiktoken_num_special_tokens", "tiktoken_special_tokens", "vocab_size")

KINDS: dict[str, tuple[Callable[..., Tokenizer], tuple[str, ...], tuple[str, ...]]] = {
    "SentencePieceTokenizer": (SentencePieceTokenizer, ("tokenizer_model",), ()),
    "GPTSentencePieceTokenizer": (SentencePieceTokenizer, ("tokenizer_model",), ()),
    "Llama2Tokenizer": (SentencePieceTokenizer, ("tokenizer_model",), ()),
    "HuggingFaceTokenizer": (HuggingFaceTokenizer, ("tokenizer_model",), ()),
    "GPT2BPETokenizer": (GPT2BPETokenizer, ("vocab_file", "merge_file"), ()),
    "TikTokenizer": (TikTokenizer, ("tokenizer_model", "tiktoken_pattern"), _TIKTOKEN),
    "ByteLevelTokenizer": (ByteLevelTokenizer, (), ()),
    "NullTokenizer": (NullTokenizer, ("vocab_size",), ()),
}
"""--tokenizer-type: what builds it, the settings that it needs, and those that it can do without, in order."""


def build_tokenizer(
    *,
    tokenizer_type: str,
    tokenizer_model: str | Path | None = None,
    vocab_file: str | Path | None = None,
    merge_file: str | Path | None = None,
    vocab_size: int | None = None,
    tiktoken_pattern: str | None = None,
    tiktoken_num_special_tokens: int = 1000,
    tiktoken_special_tokens: Sequence[str] = (),
) -> Tokenizer:
    """The tokenizer that the flags of these names ask for; ValueError names the flag that is missing or wrong."""
    if tokenizer_type not in KINDS:
        raise ValueError(f"--tokenizer-type {tokenizer_type} is unknown. The kinds are {', '.join(KINDS)}.")
    make, needs, others = KINDS[tokenizer_type]
    given = {
        "tokenizer_model": tokenizer_model,
        "vocab_file": vocab_file,
        "merge_file": merge_file,
        "vocab_size": vocab_size,
        "tiktoken_pattern": tiktoken_pattern,
        "tiktoken_num_special_tokens": tiktoken_num_special_tokens,
        "tiktoken_special_tokens": tiktoken_special_tokens,
    }
    missing = ["--" + name.replace("_", "-") for name in needs if given[name] is None]
    if missing:
        raise ValueError(f"--tokenizer-type {tokenizer_type} needs {' and '.join(missing)}.")
    return make(*(given[name] for name in needs + others))


def rebuild_tokenizer(description: Mapping[str, Any], folder: Path) -> Tokenizer:
    """The tokenizer that `describe` described, from the folder where its `files` lie."""
    in_folder = {name: folder / description[name] for name in _FILES if name in description}
    return build_tokenizer(**{**description, **in_folder})


_FILES = ("tokenizer_model", "vocab_file", "merge_file")
