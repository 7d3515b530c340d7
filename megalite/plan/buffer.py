"""How a rank's parameters lie in its buffer, and what it owns of them, worked out without making any."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from megalite.arith.buckets import ROOMS, PlacedBucket, part_of, place, shared
from megalite.arith.parameters import Weight, weights
from megalite.arith.part import Part
from megalite.arith.treatment import ENDS, Treatment, treatment
from megalite.config.derive import Derived, bucket_size
from megalite.config.schema import Config
from megalite.config.size import ModelSize


class Kind(NamedTuple):
    """As in data_parallel/layout.py."""

    treatment: Treatment
    replicated: bool
    owes_tp: bool
    owes_ends: bool


@dataclass(frozen=True, kw_only=True)
class BufferPlan:
    """The buckets of one rank."""

    config: Config
    derived: Derived
    size: ModelSize
    """With the padded vocabulary."""
    stages: Sequence[Part]
    """Those that the rank holds, in their order."""
    replica: int
    """Its data parallel rank."""

    @cached_property
    def buckets(self) -> list[PlacedBucket]:
        """In the order in which they travel: later stages first, tied weights last."""
        groups = [[w for w in reversed(weights(self.size, stage)) if not self._is_tied(w)] for stage in self.stages]
        untied = sum(self._elements(weight) for group in groups for weight in group)
        size = bucket_size(self.config.parallel, self.derived.data_parallel_size, untied)
        found: list[PlacedBucket] = []
        for group, most in [*((group, size) for group in reversed(groups)), (self._tied, None)]:
            sized = [(self._elements(weight), self._kind(weight)) for weight in group]
            start = found[-1].range.stop if found else 0
            found += place(sized, most, shards=self.derived.optimizer_shards, start=start)
        return found

    @property
    def elements(self) -> int:
        """Of all buckets, with padding."""
        return sum(map(len, self.buckets))

    @property
    def lent(self) -> int:
        """Elements of the memory that gradients have besides until they are summed."""
        if not self.config.parallel.shards_gradients:
            return 0
        lengths = [len(bucket) for bucket in self.buckets]
        untied = lengths[: len(lengths) - len(self._tied)]
        return ROOMS * max(untied, default=0) + sum(lengths[len(untied) :])

    @property
    def owed(self) -> tuple[int, int]:
        """Owned elements of which sums over tp, and over the ends of the pipeline, are owed."""
        tp = sum(length(where) for kind, where in self._owned if kind.owes_tp)
        return tp, sum(length(where) for kind, where in self._owned if kind.owes_ends)

    @property
    def matrices(self) -> list[int]:
        """Elements of each matrix that is updated whole and of which this rank owns a part."""
        return [
            length(one.range)
            for bucket in self.buckets
            for one in bucket.parameters
            if one.kind.treatment.matrix and length(shared(one.range, self._own(bucket)))
        ]

    @property
    def with_matrices(self) -> list[PlacedBucket]:
        """The buckets that have any."""
        return [bucket for bucket in self.buckets if any(kind.treatment.matrix for kind, _ in bucket.runs())]

    @property
    def moments(self) -> Fraction:
        """How many moments an element that this rank owns has, on average."""
        of_others = {"adam": 2, "sgd": 1, "muon": 2}[self.config.optimizer.optimizer]
        single = sum(length(where) for kind, where in self._owned if kind.treatment.matrix)
        return of_others - Fraction(single * self.derived.optimizer_shards, max(self.elements, 1))

    @property
    def _owned(self) -> Iterator[tuple[Kind, slice]]:
        for bucket in self.buckets:
            for kind, run in bucket.runs():
                yield kind, shared(run, self._own(bucket))

    def _own(self, bucket: PlacedBucket) -> slice:
        return part_of(bucket.range, self.replica % self.derived.optimizer_shards, self.derived.optimizer_shards)

    def _is_tied(self, weight: Weight) -> bool:
        return self.size.tied_embeddings and weight.name == ENDS[0]

    @property
    def _tied(self) -> list[Weight]:
        """The one matrix of tied embeddings, where the rank has it."""
        return [weight for stage in self.stages for weight in weights(self.size, stage) if self._is_tied(weight)][:1]

    def _elements(self, weight: Weight) -> int:
        return weight.on_rank(self.config.parallel.tensor_model_parallel_size)

    def _kind(self, weight: Weight) -> Kind:
        optimizer = self.config.optimizer
        at_one_end = any(part.embedding for part in self.stages) != any(part.loss for part in self.stages)
        return Kind(
            treatment=treatment(
                weight.name,
                weight.shape,
                decoupled=optimizer.decoupled_lr is not None,
                by_matrix=optimizer.optimizer == "muon",
            ),
            replicated=not weight.split,
            owes_tp=weight.by_heads or (self.config.parallel.sequence_parallel and not weight.split),
            owes_ends=self._is_tied(weight) and at_one_end,
        )


def length(where: slice) -> int:
    """Its elements."""
    return where.stop - where.start
