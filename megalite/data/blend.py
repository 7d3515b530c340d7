"""A data set blended from several corpora, by weights or each sample once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megalite.config.split import split_blend
from megalite.data.blend_order import blend_order
from megalite.data.gpt_dataset import Corpus, GPTDataset
from megalite.data.index_cache import Shapes, cached_arrays
from megalite.data.mock import MockCorpus
from megalite.data.storage import is_url
from megalite.data.usage import Usage


class BlendedDataset:
    """Samples of several data sets in one order: `dataset[i]` is int64 [seq_length + 1]."""

    def __init__(
        self,
        datasets: Sequence[GPTDataset],
        weights: Sequence[float],
        dataset_index: np.ndarray,
        sample_index: np.ndarray,
    ) -> None:
        self.datasets, self.weights = datasets, weights
        self.dataset_index, self.dataset_sample_index = dataset_index, sample_index
        """Whose sample comes at each place [n], and its number there [n]."""

    def __len__(self) -> int:
        return len(self.dataset_index)

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"the blend was built for {len(self)} samples; there is none with number {index}")
        return self.datasets[self.dataset_index.item(index)][self.dataset_sample_index.item(index)]

    def check(self, index: int) -> None:
        """See `GPTDataset.check`."""
        self.datasets[self.dataset_index.item(index)].check(self.dataset_sample_index.item(index))


def parse_data_path(entries: Sequence[str], flag: str = "--data-path") -> tuple[list[str], list[float] | None]:
    """Prefixes, and their weights summing to 1 when `weight prefix weight prefix ...` was given.

    ValueError for a mixture of the two ways, and for weights that are not above zero.
    """
    prefixes, weights = split_blend(entries, flag)
    return prefixes, None if weights is None else (np.array(weights) / np.sum(weights)).tolist()


@dataclass(frozen=True, kw_only=True)
class Request:
    """How samples are cut from corpora, and where their index arrays are kept."""

    seq_length: int
    seed: int
    vocab_size: int | None = None
    """Ids must be below it; None: any are right."""
    surplus: float = 0.005
    """By how much more than its share each corpus of a weighted blend is asked for, as in Megatron: the order of its
    samples depends on how many they are."""
    cache: Path | None = None
    """Where all index arrays are kept; None: those of a corpus in PREFIX/cache/GPTDataset_indices."""
    keep: bool = True
    """Whether index arrays are kept, and looked for, at all."""

    def folder(self, corpus: Corpus) -> Path | None:
        """Where the index of a corpus is kept. There is no place beside made-up data, and none beside a URL."""
        if not self.keep:
            return None
        beside = not isinstance(corpus, MockCorpus) and not is_url(corpus.prefix)
        return self.cache or (Path(corpus.prefix) / "cache" / "GPTDataset_indices" if beside else None)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One corpus in one part of the split, with its weight where weights were given."""

    corpus: Corpus
    sequences: range
    weight: float | None

    @property
    def tokens(self) -> int:
        return int(self.corpus.lengths[self.sequences.start : self.sequences.stop].sum(dtype=np.int64))

    def usage(self, part: str, samples: int, request: Request) -> Usage:
        """What so many samples take of it."""
        return Usage(
            part=part,
            prefix=self.corpus.prefix,
            tokens=self.tokens,
            samples=samples,
            seq_length=request.seq_length,
        )

    def dataset(self, part: str, num_samples: int | None, request: Request) -> GPTDataset:
        """Its samples."""
        return GPTDataset(
            self.corpus,
            sequences=self.sequences,
            num_samples=num_samples,
            seq_length=request.seq_length,
            seed=request.seed,
            split=part,
            cache=request.folder(self.corpus),
            vocab_size=request.vocab_size,
        )


def blend(
    members: Sequence[Member], part: str, size: int | None, request: Request
) -> tuple[BlendedDataset, list[Usage], list[str]]:
    """One data set of several corpora, what is taken of each, and lines for the log.

    Weighted: `size` samples, each corpus repeated as needed. Otherwise each sample at most once.
    """
    limits = None
    given = [member.weight for member in members if member.weight is not None]
    if given and size is not None:
        weights = [weight / sum(given) for weight in given]
        shares = [math.ceil(size * weight) for weight in weights]
        datasets = [
            member.dataset(part, math.ceil(share * (1 + request.surplus)), request)
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
                f"{part}: {total} samples are needed, but a blend without weights takes each of its {sum(limits)} "
                f"samples at most once. Give weights, such as 0.5 {members[0].corpus.prefix} ..., to repeat them."
            )
    shapes: Shapes = {
        "dataset_index": ((total,), np.dtype(np.int16)),
        "dataset_sample_index": ((total,), np.dtype(np.int64)),
    }
    description = {"class": "BlendedDataset", "split": part, "weights": weights, "size": total, "limits": limits}

    def order() -> dict[str, np.ndarray]:
        return dict(zip(shapes, blend_order(weights, total, limits), strict=True))

    arrays, remark = cached_arrays(request.cache if request.keep else None, description, shapes, order)
    counts = np.bincount(arrays["dataset_index"], minlength=len(members)).tolist()
    # In an extreme blend the rounding of the order can draw more than the surplus allows for.
    datasets = [
        dataset if len(dataset) >= count else member.dataset(part, count, request)
        for dataset, count, member in zip(datasets, counts, members, strict=True)
    ]
    remarks = [dataset.remark for dataset in datasets] + [remark]
    taken = np.bincount(arrays["dataset_index"][:size], minlength=len(members)).tolist()
    parts = ", ".join(f"{count} of {member.corpus.prefix}" for count, member in zip(taken, members, strict=True))
    remarks.append(f"{part}: a blend of {sum(taken)} samples: {parts}")
    usage = [member.usage(part, count, request) for member, count in zip(members, taken, strict=True)]
    blended = BlendedDataset(datasets, weights, arrays["dataset_index"], arrays["dataset_sample_index"])
    return blended, usage, [line for line in remarks if line]
