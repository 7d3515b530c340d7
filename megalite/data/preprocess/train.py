"""Training a sentencepiece model that gives every text back, source code included."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from megalite.data.preprocess.encode import read_batches

EXACT: dict[str, Any] = {
    "byte_fallback": True,  # Characters outside the vocabulary are spelled as bytes.
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,  # Indentation becomes one piece.
    "user_defined_symbols": ["\n", "\t"],  # A line end is one token everywhere, never part of a longer piece.
    "hard_vocab_limit": False,
    "max_sentence_length": 1 << 30,
    "minloglevel": 1,
}
"""Options of the trainer; by its own defaults it folds characters and loses newlines, tabs and runs of spaces."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of it."""

    vocab_size: int
    texts: int
    exact: int
    """How many of the texts come back exactly."""
    characters: int
    tokens: int


def texts_of(path: Path, key: str) -> Iterator[str]:
    """The texts of a JSONL file; ValueError names a line without one."""
    for batch in read_batches([path]):
        for number, line in batch.lines:
            try:
                text = json.loads(line)[key]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is not a JSON object with the key {key!r}") from error
            yield text


def train_tokenizer(
    source: Path, output: Path, *, vocab_size: int, model_type: str = "bpe", key: str = "text", check: int = 200
) -> Trained:
    """Train `output` from the texts of a JSONL file and encode the first `check` of them again.

    ValueError when the texts are too few for the vocabulary. The file appears whole or not at all.
    """
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=texts_of(source, key),
                model_writer=file,
                vocab_size=vocab_size,
                model_type=model_type,
                **EXACT,
            )
        model = sentencepiece.SentencePieceProcessor(model_file=str(temporary))
        os.replace(temporary, output)
    except RuntimeError as error:
        raise ValueError(f"--vocab-size {vocab_size}: sentencepiece cannot train on {source}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    texts = [text for text, _ in zip(texts_of(source, key), range(check), strict=False)]
    encoded = model.encode(texts)
    return Trained(
        vocab_size=model.get_piece_size(),
        texts=len(texts),
        exact=sum(model.decode(ids) == text for ids, text in zip(encoded, texts, strict=True)),
        characters=sum(map(len, texts)),
        tokens=sum(map(len, encoded)),
    )
