"""Megatron's mock data: counting documents, the same everywhere, for trying a set-up out without a corpus."""

from dataclasses import dataclass, field

import numpy as np

DOCUMENTS = 100_000
MOST_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class MockCorpus:
    """100,000 documents of 1 to 4095 tokens: 1, 2, 3, ... modulo the vocabulary, and the end of document."""

    vocab_size: int
    eod: int
    prefix: str = "mock data"
    lengths: np.ndarray = field(
        default_factory=lambda: np.random.default_rng(0).integers(1, MOST_TOKENS, size=DOCUMENTS, dtype=np.int64)
    )

    def get(self, index: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """`length` tokens (None: all) of a document from token `offset` on, int64."""
        whole = int(self.lengths[index])
        end = whole if length is None else offset + length
        tokens = np.arange(offset + 1, end + 1) % self.vocab_size
        if end == whole and tokens.size:
            tokens[-1] = self.eod
        return tokens

    def place(self, index: int) -> str:
        """Where it is, for messages."""
        return f"document {index}"

    @property
    def fingerprint(self) -> dict[str, int]:
        """What the content follows from."""
        return {"vocab_size": self.vocab_size, "eod": self.eod}
