"""Fill in the middle: documents cut in three and put together as prefix, suffix, middle, each after a token of its own.

Bavarian et al. 2022, https://arxiv.org/abs/2207.14255. What is done to a sample follows from the seed and its number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from megalite.data.batch import Dataset
from megalite.data.tokenizer_base import Tokenizer

LOST = "\N{REPLACEMENT CHARACTER}"
"""What stands in a text for bytes that are no whole character."""


@dataclass(frozen=True, kw_only=True)
class Middle:
    """How often it is done, and the ids that say so."""

    rate: float
    """The share of documents."""
    spm_rate: float
    """The share of these that come as suffix, prefix, middle."""
    prefix: int
    middle: int
    suffix: int
    pad: int
    """Fills a sample up that has become shorter."""
    separator: int | None = None
    """Cuts a document into fragments, of which each is treated by itself; it stays."""
    fragment_rate: float = 0.0
    """The share of fragments, in documents that have any."""
    untouched: str | None = None
    """Documents and fragments that begin so are left as they are."""


class FillInTheMiddle:
    """The samples of a data set with some of their documents, or parts of documents, rearranged; as long as before."""

    def __init__(self, dataset: Dataset, middle: Middle, tokenizer: Tokenizer, *, seed: int) -> None:
        self.dataset, self.middle, self.tokenizer, self.seed = dataset, middle, tokenizer, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> np.ndarray:
        sample, random = self.dataset[index], np.random.default_rng((self.seed, index))
        changed = _each(sample, self.tokenizer.eod, lambda document: self._document(document, random))
        filled = np.full(len(sample), self.middle.pad, np.int64)
        filled[: len(changed)] = changed[: len(sample)]
        return filled

    def check(self, index: int) -> None:
        """See `GPTDataset.check`."""
        self.dataset.check(index)

    def _document(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        separator = self.middle.separator
        if separator is None or separator not in tokens:
            return self._cut(tokens, self.middle.rate, random)
        if random.random() >= self.middle.rate:
            return tokens
        return _each(tokens, separator, lambda part: self._cut(part, self.middle.fragment_rate, random))

    def _cut(self, tokens: np.ndarray, rate: float, random: np.random.Generator) -> np.ndarray:
        """Cut a text at two of its characters, as likely as not inside of tokens: so it will be when it is used."""
        if random.random() >= rate:
            return tokens
        text = self.tokenizer.decode(tokens.tolist())
        if self.middle.untouched is not None and text.startswith(self.middle.untouched):
            return tokens
        # A sample may begin or end inside a character, which the text cannot say; then the cut is between tokens.
        whole = LOST not in text
        first, second = np.sort(random.integers(0, (len(text) if whole else len(tokens)) + 1, size=2)).tolist()
        if whole:
            encoded = self.tokenizer.encode_batch([text[:first], text[first:second], text[second:]])
            before, inside, after = (ids.astype(np.int64) for ids in encoded)
        else:
            before, inside, after = tokens[:first], tokens[first:second], tokens[second:]
        prefix, middle, suffix = ([token] for token in (self.middle.prefix, self.middle.middle, self.middle.suffix))
        if random.random() < self.middle.spm_rate:
            return np.concatenate([prefix, suffix, after, middle, before, inside])
        return np.concatenate([prefix, before, suffix, after, middle, inside])


def _each(tokens: np.ndarray, separator: int, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Change what lies between separators; these stay."""
    parts, begin = [tokens[:0]], 0
    for end in [*np.flatnonzero(tokens == separator).tolist(), len(tokens)]:
        if end > begin:
            parts.append(change(tokens[begin:end]))
        parts.append(tokens[end : end + 1])
        begin = end + 1
    return np.concatenate(parts)


def special_id(tokenizer: Tokenizer, spelling: str, flag: str) -> int:
    """The id of a token that is spelled so. ValueError names the flag where the vocabulary has none."""
    known = tokenizer.special_tokens()
    ids = [known[spelling]] if spelling in known else tokenizer.encode(spelling)
    if len(ids) != 1:
        hint = f" Known to the tokenizer are {', '.join(sorted(known)[:8])}." if known else ""
        raise ValueError(f"{flag} {spelling} is {len(ids)} tokens of this vocabulary. Give a spelling of one.{hint}")
    return ids[0]
