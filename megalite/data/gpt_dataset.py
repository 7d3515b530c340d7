"""Samples for a GPT: documents shuffled, laid end to end and cut every seq_length tokens, in Megatron's exact order.

A sample is seq_length + 1 tokens: inputs and, one further, labels; so neighbours share one token. Three arrays say
which tokens a sample is: document_index, the documents of all epochs in shuffled order; sample_index, where each cut
falls in that row, as (place in document_index, token offset); shuffle_index, the order in which the pieces come.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from megalite.data.index_cache import Arrays, Shapes, cached_arrays
from megalite.data.sample_index import cut_samples

SEPARATE_BELOW = 0.8
"""A last epoch that is used for less than this share is shuffled apart, so that the earlier ones are used whole."""
PROBES, PROBE_TOKENS = 64, 4096
"""Sequences looked into, at start, for an id beyond the vocabulary, and how far."""


class Corpus(Protocol):
    """Sequences of token ids."""

    @property
    def prefix(self) -> str:
        """Its name in messages, and where its files are."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each sequence [S]."""

    def get(self, index: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """`length` tokens of a sequence from `offset` on."""

    def place(self, index: int) -> str:
        """Where a sequence is, for messages."""

    @property
    def fingerprint(self) -> dict[str, int]:
        """Differs when the content does."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many samples a row of documents gives."""

    epochs: int
    samples: int
    """All that the epochs hold: at least as many as asked for."""
    first_samples: int
    """Samples shuffled among themselves, before the rest; fewer than `samples` when the last epoch stands apart."""

    @property
    def separate(self) -> bool:
        return self.first_samples < self.samples


def plan_samples(tokens: int, num_samples: int | None, seq_length: int) -> Plan:
    """The least number of epochs of `tokens` tokens that hold num_samples samples (None: one epoch)."""
    epochs = 1 if num_samples is None else max(1, -(-(num_samples * seq_length + 1) // tokens))
    samples = (epochs * tokens - 1) // seq_length
    if epochs > 1 and num_samples is not None:
        whole = ((epochs - 1) * tokens - 1) // seq_length
        if num_samples - whole < int(SEPARATE_BELOW * ((tokens - 1) // seq_length)):
            return Plan(epochs=epochs, samples=samples, first_samples=whole)
    return Plan(epochs=epochs, samples=samples, first_samples=samples)


class GPTDataset:
    """`dataset[i]`: sample i as int64 [seq_length + 1]. `remark` is for the log, where it is not empty.

    `sequences` is the part of the corpus to use and `num_samples` the least number of samples to have: the part is
    repeated as often as that takes (None: once). ValueError when it has no tokens, or where a look into it finds ids
    beyond vocab_size; what it missed `check` finds, which whoever makes batches calls.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        sequences: range,
        num_samples: int | None,
        seq_length: int,
        seed: int,
        split: str,
        cache: Path | None,
        vocab_size: int | None,
    ) -> None:
        self.corpus, self.vocab_size = corpus, vocab_size
        self.tokens = int(corpus.lengths[sequences.start : sequences.stop].sum(dtype=np.int64))
        least = seq_length + 1 if num_samples is None else 1
        if self.tokens < least:
            raise ValueError(
                f"the {split} split of {corpus.prefix} has {self.tokens} tokens in {len(sequences)} documents, but one "
                f"sample takes --seq-length + 1 = {seq_length + 1}. Give it a larger share of --split, or more data."
            )
        self._probe_vocabulary(sequences)
        plan = plan_samples(self.tokens, num_samples, seq_length)
        self.sequences, self.seq_length, self.seed, self.plan = sequences, seq_length, seed, plan
        rows = plan.epochs * len(sequences)
        wide = np.dtype(np.int64 if rows > np.iinfo(np.int32).max else np.int32)
        order = np.dtype(np.int64 if plan.samples >= np.iinfo(np.uint32).max - 1 else np.uint32)
        shapes: Shapes = {
            "document_index": ((rows,), np.dtype(np.int32)),
            "sample_index": ((plan.samples + 1, 2), wide),
            "shuffle_index": ((plan.samples,), order),
        }
        description = {
            "class": "GPTDataset",
            "split": split,
            "prefix": corpus.prefix,
            "corpus": corpus.fingerprint,
            "sequences": [sequences.start, sequences.stop],
            "num_samples": num_samples,
            "seq_length": seq_length,
            "seed": seed,
        }

        def build() -> Arrays:
            return build_index(corpus.lengths, sequences, plan, seq_length=seq_length, seed=seed, shapes=shapes)

        arrays, self.remark = cached_arrays(cache, description, shapes, build)
        self.document_index = arrays["document_index"]
        self.sample_index = arrays["sample_index"]
        self.shuffle_index = arrays["shuffle_index"]

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def __getitem__(self, index: int) -> np.ndarray:
        pieces = [tokens for _, _, tokens in self._pieces(index)]
        return pieces[0].astype(np.int64) if len(pieces) == 1 else np.concatenate(pieces, dtype=np.int64)

    def check(self, index: int) -> None:
        """ValueError names the document in which a sample has an id beyond the vocabulary."""
        for sequence, start, tokens in self._pieces(index):
            self._check_vocabulary(sequence, start, tokens)

    def _pieces(self, index: int) -> list[tuple[int, int, np.ndarray]]:
        """What a sample is made of: the sequence, from which of its tokens on, and the tokens as they are stored."""
        if not 0 <= index < len(self.shuffle_index):
            raise IndexError(
                f"{self.corpus.prefix} was built for {len(self)} samples; there is none with number {index}"
            )
        row, cuts = self.shuffle_index.item(index), self.sample_index
        first, begin, last, end = cuts.item(row, 0), cuts.item(row, 1), cuts.item(row + 1, 0), cuts.item(row + 1, 1)
        pieces = []
        for place in range(first, last + 1):
            sequence, start = self.document_index.item(place), begin if place == first else 0
            tokens = self.corpus.get(sequence, start, end + 1 - start if place == last else None)
            pieces.append((sequence, start, tokens))
        return pieces

    def _probe_vocabulary(self, sequences: range) -> None:
        if self.vocab_size is not None:
            for sequence in np.linspace(sequences.start, sequences.stop - 1, PROBES, dtype=np.int64).tolist():
                length = min(PROBE_TOKENS, int(self.corpus.lengths[sequence]))
                self._check_vocabulary(sequence, 0, self.corpus.get(sequence, 0, length))

    def _check_vocabulary(self, sequence: int, start: int, tokens: np.ndarray) -> None:
        """`tokens` are those of a sequence from number `start` on."""
        if self.vocab_size is not None and tokens.size and (tokens.min() < 0 or tokens.max() >= self.vocab_size):
            wrong = int(np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))[0])
            raise ValueError(
                f"{self.corpus.prefix}: {self.corpus.place(sequence)} holds the token id {tokens[wrong]} at token "
                f"{start + wrong}, but the vocabulary has {self.vocab_size} entries (ids 0 to {self.vocab_size - 1}). "
                f"Was the corpus made with another tokenizer?"
            )


def build_index(
    lengths: np.ndarray, sequences: range, plan: Plan, *, seq_length: int, seed: int, shapes: Shapes
) -> Arrays:
    """The three index arrays. One generator shuffles documents, then samples: the order of its draws matters."""
    random = np.random.RandomState(seed)
    document_index = _shuffled_documents(sequences, plan, random)
    sample_index = np.empty(*shapes["sample_index"])
    cut_samples(lengths, document_index, seq_length=seq_length, index=sample_index)
    shuffle_index = np.arange(plan.samples, dtype=shapes["shuffle_index"][1])
    random.shuffle(shuffle_index[: plan.first_samples])
    if plan.separate:
        random.shuffle(shuffle_index[plan.first_samples :])
    return {"document_index": document_index, "sample_index": sample_index, "shuffle_index": shuffle_index}


def _shuffled_documents(sequences: range, plan: Plan, random: np.random.RandomState) -> np.ndarray:
    """Each sequence once for each epoch, int32; all epochs shuffled together, but for a last one that stands apart."""
    once = np.arange(sequences.start, sequences.stop, dtype=np.int32)
    blocks = [plan.epochs - 1, 1] if plan.separate else [plan.epochs]
    shuffled = [np.tile(once, epochs) for epochs in blocks]
    for block in shuffled:
        random.shuffle(block)
    return np.concatenate(shuffled)


def split_ranges(shares: Sequence[float], sequences: int) -> list[range]:
    """The sequences of each part, in file order: disjoint, in order, together all of them."""
    edges = np.minimum(np.cumsum([0.0, *shares]), 1.0)
    bounds = [round(float(edge) * sequences) for edge in edges]
    return [range(low, high) for low, high in pairwise(bounds)]
