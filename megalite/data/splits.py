"""Training, validation and test data: the parts of one blend, cut by --split, or a blend for each of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from megalite.config.split import split_shares
from megalite.data.batch import Dataset, DocumentEnds
from megalite.data.blend import BlendedDataset, Member, Request, blend, parse_data_path
from megalite.data.gpt_dataset import Corpus, GPTDataset, split_ranges
from megalite.data.indexed import IndexedCorpus
from megalite.data.mock import MockCorpus
from megalite.data.usage import Usage

PARTS = ("train", "valid", "test")

Sizes = tuple[int | None, int | None, int | None]
"""Samples of each part that are wanted at least; 0: not built; None: one epoch."""


@dataclass(frozen=True, kw_only=True)
class Datasets:
    """What to train and evaluate on."""

    train: Dataset | None
    """None where nothing was asked for."""
    validation: Mapping[str, Dataset]
    """Each validation set by the name that it is reported by; none where nothing was asked for or nothing is left."""
    test: Dataset | None
    """None where nothing was asked for or nothing is left."""
    ends: DocumentEnds | None = None
    """What an end of document inside a sample does; None: nothing."""
    vocab_size: int | None = None
    """Ids must be below it; None: any are right."""
    usage: tuple[Usage, ...] = ()
    """What is taken of each corpus."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """What the order of the training samples follows from: see `data.order`."""
    notes: tuple[str, ...]
    """Lines for the log: documents and tokens of each part, what is left out."""

    @property
    def valid(self) -> Dataset | None:
        """The first of the validation sets."""
        return next(iter(self.validation.values()), None)

    def changed(self, change: Callable[[Dataset], Dataset]) -> "Datasets":
        """The same with each data set changed."""
        return replace(
            self,
            train=None if self.train is None else change(self.train),
            validation={name: change(dataset) for name, dataset in self.validation.items()},
            test=None if self.test is None else change(self.test),
        )

    def held_out(self, split: str) -> Mapping[str, Dataset]:
        """What there is to evaluate on under `validation` or `test`, by the names that are reported."""
        if split == "validation":
            return self.validation
        return {} if self.test is None else {"test": self.test}


def build_datasets(
    data_path: Sequence[str], *, split: str, sizes: Sizes, request: Request, validate_apart: bool = False
) -> Datasets:
    """The parts of one blend, each corpus cut by `split`.

    `validate_apart` makes a validation set of each corpus, with as many samples each.
    ValueError when the training part is empty or too small; a part that is only evaluated on is then left out, and a
    note says so.
    """
    prefixes, weights = parse_data_path(data_path)
    return _cut([IndexedCorpus(prefix) for prefix in prefixes], weights, split, sizes, request, validate_apart)


def build_datasets_of_parts(
    paths: Mapping[str, Sequence[str]], *, sizes: Sizes, request: Request, validate_apart: bool = False
) -> Datasets:
    """The same where each of `train`, `valid` and `test` has a blend of its own; one that has none is left out."""
    members: dict[str, list[Member]] = {part: [] for part in PARTS}
    notes = []
    for part, path in paths.items():
        prefixes, weights = parse_data_path(path, f"--{part}-data-path") if path else ([], None)
        members[part] = [
            Member(corpus=corpus, sequences=range(len(corpus.lengths)), weight=weight)
            for corpus, weight in zip(map(IndexedCorpus, prefixes), weights or repeat(None), strict=False)
        ]
        notes += [f"{part}: {_size_of(member.corpus)}" for member in members[part]]
    return _build(members, sizes, request, notes, "", validate_apart)


def build_mock_datasets(*, sizes: Sizes, request: Request, vocab_size: int, eod: int) -> Datasets:
    """The same from mock data, in three equal parts as in Megatron."""
    return _cut([MockCorpus(vocab_size=vocab_size, eod=eod)], None, "1,1,1", sizes, request, False)


def _cut(
    corpora: Sequence[Corpus],
    weights: list[float] | None,
    split: str,
    sizes: Sizes,
    request: Request,
    validate_apart: bool,
) -> Datasets:
    shares = split_shares(split)
    ranges = [split_ranges(shares, len(corpus.lengths)) for corpus in corpora]
    members = {
        part: [
            Member(corpus=corpus, sequences=cut[number], weight=weight)
            for corpus, cut, weight in zip(corpora, ranges, weights or repeat(None, len(corpora)), strict=True)
        ]
        for number, part in enumerate(PARTS)
    }
    notes = [_parts_note(corpus, cut, shares) for corpus, cut in zip(corpora, ranges, strict=True)]
    return _build(members, sizes, request, notes, f"--split {split} leaves ", validate_apart)


def _parts_note(corpus: Corpus, parts: list[range], shares: Sequence[float]) -> str:
    words = []
    for part, sequences, share in zip(PARTS, parts, shares, strict=True):
        none = "none, since its share rounds to no document" if share else "none"
        words.append(f"{part} {f'{sequences.start} to {sequences.stop - 1}' if sequences else none}")
    return f"{_size_of(corpus)}; documents {', '.join(words)}"


def _size_of(corpus: Corpus) -> str:
    tokens = corpus.lengths.sum(dtype=np.int64)
    return f"{corpus.prefix}: {len(corpus.lengths)} documents, {tokens} tokens"


def _build(
    members: Mapping[str, Sequence[Member]],
    sizes: Sizes,
    request: Request,
    notes: list[str],
    cause: str,
    validate_apart: bool,
) -> Datasets:
    """`cause` begins the sentence about a corpus that has too little."""
    size = dict(zip(PARTS, sizes, strict=True))
    parts = _apart(members["valid"]) if validate_apart else {"validation": members["valid"]}
    train = _part("train", members["train"], size["train"], request, cause)
    validation = {name: _part("valid", chosen, size["valid"], request, cause) for name, chosen in parts.items()}
    test = _part("test", members["test"], size["test"], request, cause)
    built = [train, *validation.values(), test]
    return Datasets(
        train=train.dataset,
        validation={name: part.dataset for name, part in validation.items() if part.dataset is not None},
        test=test.dataset,
        vocab_size=request.vocab_size,
        usage=tuple(used for part in built for used in part.usage),
        notes=(*notes, *(note for part in built for note in part.notes)),
    )


def _apart(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Each corpus by itself: by its file's name, or its whole path where two have one name."""
    names = [Path(member.corpus.prefix).name for member in members]
    return {
        f"validation-{name if names.count(name) == 1 else member.corpus.prefix}": [member]
        for name, member in zip(names, members, strict=True)
    }


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The data set of one part, if any; what is taken of each corpus; lines for the log."""

    dataset: GPTDataset | BlendedDataset | None = None
    usage: Sequence[Usage] = ()
    notes: Sequence[str] = ()


def _part(part: str, members: Sequence[Member], size: int | None, request: Request, cause: str) -> _Part:
    if size == 0:
        return _Part()
    # Only a size can be reached by repeating; one epoch must hold a sample by itself.
    one_epoch = size is None or (len(members) > 1 and members[0].weight is None)
    least = request.seq_length + 1 if one_epoch else 1
    kept = [member for member in members if member.tokens >= least]
    lacks = [
        f"{cause}{member.tokens} tokens of {member.corpus.prefix} for {part}; {least} are needed"
        for member in members
        if member.tokens < least
    ]
    if part == "train" and lacks:
        raise ValueError(f"{lacks[0]}. Give it {'a larger share, or ' if cause else ''}more data.")
    notes = [f"{part}: {lack}; it is left out." for lack in lacks]
    if not kept:
        return _Part(notes=[*notes, f"{part}: no data, so there is nothing to evaluate on."])
    if len(members) == 1:
        dataset = members[0].dataset(part, size, request)
        usage = members[0].usage(part, len(dataset) if size is None else size, request)
        return _Part(dataset=dataset, usage=[usage], notes=[*notes, *filter(None, [dataset.remark])])
    blended, used, remarks = blend(kept, part, size, request)
    return _Part(dataset=blended, usage=used, notes=[*notes, *remarks])
