"""From --data-path and --split to the three data sets, blended from several corpora where several are named."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from megalite.config.split import split_shares
from megalite.data.batch import DocumentEnds
from megalite.data.gpt_dataset import Corpus, GPTDataset, split_ranges
from megalite.data.index_cache import Shapes, cached_arrays
from megalite.data.indexed import IndexedCorpus
from megalite.data.mock import MockCorpus

PARTS = ("train", "valid", "test")
SURPLUS = 0.005
"""Megatron asks each corpus of a weighted blend for this much more than its share; the sample order depends on it."""


@dataclass(frozen=True, kw_only=True)
class Datasets:
    """What to train and evaluate on; None where nothing was asked for or the split left nothing."""

    train: "GPTDataset | BlendedDataset | None"
    valid: "GPTDataset | BlendedDataset | None"
    test: "GPTDataset | BlendedDataset | None"
    ends: DocumentEnds | None = None
    """What an end of document inside a sample does; None: nothing."""
    notes: tuple[str, ...]
    """Lines for the log: documents and tokens of each part, epochs, what is left out."""


class BlendedDataset:
    """Samples of several data sets in one order: `dataset[i]` is int64 [seq_length + 1]."""

    def __init__(self, datasets: Sequence[GPTDataset], dataset_index: np.ndarray, sample_index: np.ndarray) -> None:
        self.datasets = datasets
        self.dataset_index, self.dataset_sample_index = dataset_index, sample_index
        """Whose sample comes at each place [n], and its number there [n]."""

    def __len__(self) -> int:
        return len(self.dataset_index)

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"the blend was built for {len(self)} samples; there is none with number {index}")
        return self.datasets[self.dataset_index[index]][int(self.dataset_sample_index[index])]


def parse_data_path(entries: Sequence[str]) -> tuple[list[str], list[float] | None]:
    """Prefixes, and their weights summing to 1 when `weight prefix weight prefix ...` was given.

    ValueError for a mixture of the two ways, and for weights that are not above zero.
    """
    numbers = [_number(entry) for entry in entries]
    if not entries:
        raise ValueError("--data-path is empty. Give the prefix of a .bin/.idx pair, or --mock-data.")
    if all(number is None for number in numbers):
        return list(entries), None
    weights = [number for number in numbers[::2] if number is not None]
    if 2 * len(weights) != len(entries) or any(number is not None for number in numbers[1::2]):
        raise ValueError(
            f"--data-path {' '.join(entries)}: give either prefixes only, or a weight before each prefix, such as "
            f"0.3 data/a 0.7 data/b. A prefix that looks like a number is written with its folder, such as ./1."
        )
    if not all(weight > 0 and math.isfinite(weight) for weight in weights):
        raise ValueError(f"--data-path has the weights {weights}; each must be above 0. Leave out what weighs nothing.")
    return list(entries[1::2]), (np.array(weights) / np.sum(weights)).tolist()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def blend_order(
    weights: Sequence[float], size: int, limits: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Whose sample comes at each of `size` places (int16), and its number there (int64).

    Each place goes to the data set furthest behind its share, the first of equals; with `limits`, only to one that
    has not handed out all it has. So after any number of samples no share is off by more than about one sample.
    """
    order, drawn = np.empty(size, np.int16), [0] * len(weights)
    open_sets = list(range(len(weights)))
    for place in range(size):
        step = max(place, 1)
        chosen, largest = open_sets[0], -math.inf
        for index in open_sets:
            behind = weights[index] * step - drawn[index]
            if behind > largest:
                chosen, largest = index, behind
        order[place] = chosen
        drawn[chosen] += 1
        if limits is not None and drawn[chosen] == limits[chosen]:
            open_sets.remove(chosen)
    samples = np.empty(size, np.int64)
    for index in range(len(weights)):
        places = order == index
        samples[places] = np.arange(np.count_nonzero(places))
    return order, samples


@dataclass(frozen=True, kw_only=True)
class Request:
    """How samples are cut from a corpus."""

    seq_length: int
    seed: int
    cache: Path | None
    vocab_size: int | None


@dataclass(frozen=True, kw_only=True)
class Member:
    """One corpus in one part of the split, with its weight where weights were given."""

    corpus: Corpus
    sequences: range
    weight: float | None

    @property
    def tokens(self) -> int:
        return int(self.corpus.lengths[self.sequences.start : self.sequences.stop].sum(dtype=np.int64))

    def dataset(self, part: str, num_samples: int | None, request: Request) -> GPTDataset:
        """Its samples. Without a cache folder for all, a corpus keeps its index beside it; mock data keep none."""
        beside = Path(self.corpus.prefix) / "cache" / "GPTDataset_indices"
        return GPTDataset(
            self.corpus,
            sequences=self.sequences,
            num_samples=num_samples,
            seq_length=request.seq_length,
            seed=request.seed,
            split=part,
            cache=request.cache or (None if isinstance(self.corpus, MockCorpus) else beside),
            vocab_size=request.vocab_size,
        )


def build_datasets(
    data_path: Sequence[str],
    *,
    split: str,
    sizes: tuple[int | None, int | None, int | None],
    seq_length: int,
    seed: int,
    cache: Path | None = None,
    vocab_size: int | None = None,
) -> Datasets:
    """Training, validation and test data of at least `sizes` samples each (0: not built; None: one epoch).

    `cache` keeps the index arrays; without it each corpus keeps its own in PREFIX/cache/GPTDataset_indices.
    ValueError when the training part is empty or too small; a part that is only evaluated on is then None, and a note
    says so.
    """
    prefixes, weights = parse_data_path(data_path)
    corpora = [IndexedCorpus(prefix) for prefix in prefixes]
    request = Request(seq_length=seq_length, seed=seed, cache=cache, vocab_size=vocab_size)
    return _build(corpora, weights, split, sizes, request)


def build_mock_datasets(
    *,
    sizes: tuple[int | None, int | None, int | None],
    seq_length: int,
    seed: int,
    vocab_size: int,
    eod: int,
    cache: Path | None = None,
) -> Datasets:
    """The same from mock data, in three equal parts as in Megatron."""
    corpus = MockCorpus(vocab_size=vocab_size, eod=eod)
    request = Request(seq_length=seq_length, seed=seed, cache=cache, vocab_size=vocab_size)
    return _build([corpus], None, "1,1,1", sizes, request)


def _build(
    corpora: Sequence[Corpus],
    weights: list[float] | None,
    split: str,
    sizes: tuple[int | None, int | None, int | None],
    request: Request,
) -> Datasets:
    shares = split_shares(split)
    ranges = [split_ranges(shares, len(corpus.lengths)) for corpus in corpora]
    notes = [_parts_note(corpus, parts, shares) for corpus, parts in zip(corpora, ranges, strict=True)]
    built: dict[str, GPTDataset | BlendedDataset | None] = dict.fromkeys(PARTS)
    for number, (part, size) in enumerate(zip(PARTS, sizes, strict=True)):
        if size == 0:
            continue
        # Only a size can be reached by repeating; one epoch must hold a sample by itself.
        one_epoch = size is None or (weights is None and len(corpora) > 1)
        least = request.seq_length + 1 if one_epoch else 1
        members = []
        for corpus, parts, weight in zip(corpora, ranges, weights or repeat(None, len(corpora)), strict=True):
            member = Member(corpus=corpus, sequences=parts[number], weight=weight)
            if member.tokens >= least:
                members.append(member)
                continue
            lack = f"--split {split} leaves {member.tokens} tokens of {corpus.prefix} for {part}; {least} are needed"
            if part == "train":
                raise ValueError(f"{lack}. Give it a larger share, or more data.")
            notes.append(f"{part}: {lack}; it is left out.")
        if not members:
            notes.append(f"{part}: no data, so there is nothing to evaluate on.")
        elif len(corpora) == 1:
            dataset = members[0].dataset(part, size, request)
            built[part], notes = dataset, [*notes, *dataset.notes]
        else:
            built[part], remarks = _blend(members, part, size, request)
            notes += remarks
    return Datasets(train=built["train"], valid=built["valid"], test=built["test"], notes=tuple(notes))


def _parts_note(corpus: Corpus, parts: list[range], shares: Sequence[float]) -> str:
    words = []
    for part, sequences, share in zip(PARTS, parts, shares, strict=True):
        none = "none, since its share rounds to no document" if share else "none"
        words.append(f"{part} {f'{sequences.start} to {sequences.stop - 1}' if sequences else none}")
    tokens = corpus.lengths.sum(dtype=np.int64)
    return f"{corpus.prefix}: {len(corpus.lengths)} documents, {tokens} tokens; documents {', '.join(words)}"


def _blend(members: list[Member], part: str, size: int | None, request: Request) -> tuple[BlendedDataset, list[str]]:
    """Weighted: `size` samples, each corpus repeated as needed. Otherwise each sample at most once."""
    limits = None
    given = [member.weight for member in members if member.weight is not None]
    if given and size is not None:
        weights = [weight / sum(given) for weight in given]
        shares = [math.ceil(size * weight) for weight in weights]
        datasets = [
            member.dataset(part, math.ceil(share * (1 + SURPLUS)), request)
            for member, share in zip(members, shares, strict=True)
        ]
        total = sum(shares)
    else:
        datasets = [member.dataset(part, None, request) for member in members]
        limits = [len(dataset) for dataset in datasets]
        weights = [limit / sum(limits) for limit in limits]
        total = sum(limits) if size is None else size
        if total > sum(limits):
            raise ValueError(
                f"{part}: {total} samples are needed, but --data-path without weights takes each of its {sum(limits)} "
                f"samples at most once. Give weights, such as 0.5 {members[0].corpus.prefix} ..., to repeat them."
            )
    shapes: Shapes = {
        "dataset_index": ((total,), np.dtype(np.int16)),
        "dataset_sample_index": ((total,), np.dtype(np.int64)),
    }
    description = {"class": "BlendedDataset", "split": part, "weights": weights, "size": total, "limits": limits}

    def order() -> dict[str, np.ndarray]:
        return dict(zip(shapes, blend_order(weights, total, limits), strict=True))

    arrays, remark = cached_arrays(request.cache, description, shapes, order)
    counts = np.bincount(arrays["dataset_index"], minlength=len(members)).tolist()
    # In an extreme blend the rounding of the order can draw more than the surplus allows for.
    datasets = [
        dataset if len(dataset) >= count else member.dataset(part, count, request)
        for dataset, count, member in zip(datasets, counts, members, strict=True)
    ]
    parts = ", ".join(f"{count} of {member.corpus.prefix}" for count, member in zip(counts, members, strict=True))
    remarks = [note for dataset in datasets for note in dataset.notes]
    remarks += [f"{part}: a blend of {total} samples: {parts}", *([remark] if remark else [])]
    return BlendedDataset(datasets, arrays["dataset_index"], arrays["dataset_sample_index"]), remarks
