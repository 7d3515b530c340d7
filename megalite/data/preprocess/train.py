"""Training a tokenizer that gives every text back, source code included."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from megalite.data.preprocess.long import Cutter
from megalite.data.preprocess.reader import read_batches
from megalite.data.preprocess.records import read_record
from megalite.data.preprocess.sources import Source, find_sources
from megalite.data.tokenizer import SentencePieceTokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.data.tokenizer_bpe import END_NAMES, HuggingFaceTokenizer

MODEL_TYPES = ("bpe", "unigram", "byte-level-bpe")
"""The first two are sentencepiece's."""

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
"""Options of sentencepiece; by its own defaults it folds characters and loses newlines, tabs and runs of spaces."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of it."""

    output: Path
    vocab_size: int
    texts: int
    exact: int
    """How many of the texts come back exactly."""
    characters: int
    tokens: int


def texts_of(sources: Sequence[Source], key: str) -> Iterator[str]:
    """The texts of the inputs; ValueError names a record without one. A text too long to be held comes in parts."""

    def words_apart(texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    for batch in read_batches(sources, keys=[key], cutter=Cutter(words_apart)):
        if batch.bad:
            raise ValueError(batch.bad.line())
        if batch.part_of:
            yield batch.data.decode()
        for number, data in batch.records() if batch.part_of is None else ():
            try:
                yield from read_record(data, [key], is_json=batch.is_json)[0][key]
            except ValueError as error:
                raise ValueError(batch.wrong(number, str(error)).line()) from error


def train_tokenizer(
    inputs: Sequence[str],
    output_prefix: str,
    *,
    vocab_size: int,
    model_type: str = "bpe",
    key: str = "text",
    input_format: str = "auto",
    check: int = 200,
) -> Trained:
    """Train on the texts of the inputs, and encode the first `check` of them again.

    Writes PREFIX.model, or for "byte-level-bpe" the folder PREFIX with a tokenizer.json. ValueError when the texts are
    too few for the vocabulary. The files appear whole or not at all.
    """
    sources = find_sources(inputs, input_format)
    texts = texts_of(sources, key)
    make = _byte_level if model_type == "byte-level-bpe" else _sentencepiece
    tokenizer, output = make(texts, Path(output_prefix), vocab_size, model_type)
    first = list(islice(texts_of(sources, key), check))
    encoded = [tokenizer.encode(text) for text in first]
    return Trained(
        output=output,
        vocab_size=tokenizer.vocab_size,
        texts=len(first),
        exact=sum(tokenizer.decode(ids) == text for ids, text in zip(encoded, first, strict=True)),
        characters=sum(map(len, first)),
        tokens=sum(map(len, encoded)),
    )


def _sentencepiece(texts: Iterator[str], prefix: Path, vocab_size: int, model_type: str) -> tuple[Tokenizer, Path]:
    output = prefix.with_name(f"{prefix.name}.model")
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=texts, model_writer=file, vocab_size=vocab_size, model_type=model_type, **EXACT
            )
        os.replace(temporary, output)
    except RuntimeError as error:
        raise ValueError(f"--vocab-size {vocab_size}: sentencepiece cannot train on this input: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return SentencePieceTokenizer(output), output


def _byte_level(texts: Iterator[str], folder: Path, vocab_size: int, model_type: str) -> tuple[Tokenizer, Path]:
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError(f'--model-type {model_type} needs tokenizers: pip install "megalite[data]"') from error
    if vocab_size < 257:
        raise ValueError(f"--vocab-size {vocab_size} is below 257, the 256 bytes and the end of a document.")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_NAMES[0]],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps({"eos_token": END_NAMES[0], "tokenizer_class": "PreTrainedTokenizerFast"})
    for name, content in (("tokenizer_config.json", config), ("tokenizer.json", bpe.to_str())):
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        temporary.write_text(content, "utf-8")
        os.replace(temporary, folder / name)
    return HuggingFaceTokenizer(folder), folder
