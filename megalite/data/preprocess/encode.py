"""Records to token ids: what a worker does with a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megalite.data.indexed import token_dtype
from megalite.data.preprocess.batch import REPLACED, Bad, Batch, Done, Encoded
from megalite.data.preprocess.records import Texts, read_record
from megalite.data.preprocess.sentences import split_sentences
from megalite.data.tokenizer_base import Tokenizer
from megalite.data.tokenizer_engine import Encode, Recipe, tiktoken_encode, with_special
from megalite.environment import set_default


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """What to take from each record and how to encode it."""

    tokenizer: tuple[tuple[str, Any], ...]
    """Arguments of build_tokenizer, as pairs: each worker makes its own."""
    keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    on_error: str = "stop"
    """Or "skip", or "replace"."""
    recipe: Recipe | None = None
    """Of tiktoken's engine, where it gives the same ids; None: the tokenizer's own."""
    allow_special: bool = False
    split_sentences: bool = False
    keep_newlines: bool = False


class Encoder:
    """An Encoding at work."""

    def __init__(self, encoding: Encoding, tokenizer: Tokenizer) -> None:
        # In one thread: the number of workers is what the user asked for.
        set_default("TOKENIZERS_PARALLELISM", "false")
        self.encoding, self.tokenizer = encoding, tokenizer
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.eod = tokenizer.eod if encoding.append_eod else None
        self.encode: Encode = tokenizer.encode_batch
        if encoding.recipe is not None:
            self.encode = tiktoken_encode(encoding.recipe, tokenizer)
        self.special = np.array([] if self.eod is None else [self.eod])
        if encoding.allow_special:
            spelled = tokenizer.special_tokens()
            if not spelled:
                raise ValueError(f"--allow-special: {type(tokenizer).__name__} has no special tokens; leave it out.")
            self.encode = with_special(self.encode, spelled)
            self.special = np.array(list(spelled.values()))

    def batch(self, batch: Batch) -> Done:
        """The documents of a batch by key, and what was wrong with it."""
        if batch.part_of is not None or batch.bad:
            return self._part(batch)
        bad: list[Bad] = []
        numbers: list[int] = []
        documents: dict[str, list[Texts]] = {key: [] for key in self.encoding.keys}
        may_replace = self.encoding.on_error == "replace"
        for number, data in batch.records():
            try:
                texts, replaced = read_record(data, self.encoding.keys, is_json=batch.is_json, may_replace=may_replace)
            except ValueError as error:
                bad.append(batch.wrong(number, str(error)))
                if self.encoding.on_error == "stop":
                    break
                continue
            if replaced:
                bad.append(batch.wrong(number, REPLACED, replaced=True))
            numbers.append(number)
            for key, found in texts.items():
                documents[key].append([part for text in found for part in self._sequences(text)])
        try:
            encoded = {key: self._encoded(found) for key, found in documents.items()}
        except Exception:  # Whatever the library raises, the user needs the record.
            faults = [self._fault([found[n] for found in documents.values()]) for n in range(len(numbers))]
            bad += [batch.wrong(number, fault) for number, fault in zip(numbers, faults, strict=True) if fault]
            encoded = {
                key: self._encoded([texts for texts, fault in zip(found, faults, strict=True) if not fault])
                for key, found in documents.items()
            }
        return Done(encoded=encoded, bad=tuple(sorted(bad, key=lambda one: one.number)), records=len(numbers))

    def _part(self, batch: Batch) -> Done:
        bad = [batch.bad] if batch.bad else []
        if not batch.data:
            return Done(encoded={}, bad=tuple(bad), records=int(batch.part_of is not None))
        assert batch.part_of is not None
        texts = self._sequences(batch.data.decode())
        if fault := self._fault([texts]):
            return Done(encoded={}, bad=(batch.wrong(batch.first, fault),))
        # The end of the document comes with its last part, not here.
        return Done(encoded={batch.part_of: self._encoded([texts], ends=False)})

    def _fault(self, documents: Sequence[Texts]) -> str | None:
        """Why these cannot be encoded."""
        try:
            self.encode([text for texts in documents for text in texts])
        except Exception as error:
            return f" cannot be encoded: {error}"
        return None

    def _sequences(self, text: str) -> Texts:
        if self.encoding.split_sentences:
            return split_sentences(text, keep_newlines=self.encoding.keep_newlines)
        return [text]

    def _encoded(self, documents: Sequence[Texts], *, ends: bool = True) -> Encoded:
        """Ids of documents, which end here or go on."""
        found = self.encode([text for texts in documents for text in texts])
        lengths = np.array([len(ids) for ids in found], np.int64)
        tokens = np.concatenate(found) if found else np.empty(0, np.int64)
        owner = np.repeat(np.arange(len(documents)), np.array([len(texts) for texts in documents], np.int64))[
            lengths > 0
        ]
        lengths = lengths[lengths > 0]
        sequences = np.bincount(owner, minlength=len(documents))
        unknown = 0 if self.tokenizer.unknown is None else int(np.count_nonzero(tokens == self.tokenizer.unknown))
        special = int(np.isin(tokens, self.special).sum()) if len(self.special) else 0
        full = sequences[sequences > 0]
        if self.eod is not None and ends:
            lengths[np.cumsum(full) - 1] += 1
            tokens = _end_documents(
                tokens, np.add.reduceat(lengths, np.cumsum(full) - full) if len(full) else full, self.eod
            )
        return Encoded(
            tokens=tokens.astype(self.dtype, copy=False),
            lengths=lengths,
            sequences=None if (full == 1).all() else full,
            empty=len(documents) - len(full),
            unknown=unknown,
            special=special,
        )


def _end_documents(tokens: np.ndarray, sizes: np.ndarray, eod: int) -> np.ndarray:
    """The documents of tokens with `eod` after each; `sizes` count it in."""
    ended = np.empty(len(tokens) + len(sizes), tokens.dtype if eod <= np.iinfo(tokens.dtype).max else np.int64)
    is_text = np.ones(len(ended), bool)
    is_text[np.cumsum(sizes) - 1] = False
    ended[is_text] = tokens
    ended[~is_text] = eod
    return ended
