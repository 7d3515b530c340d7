"""How a rank's parameters lie in its buffer, and what it owns of them, worked out without making any."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from megalite.arith.buckets import PlacedBucket, length, part_of, place, rooms, shared
from megalite.arith.parameters import Weight, weights
from megalite.arith.part import Part
from megalite.arith.treatment import ENDS, Kind, treatment
from megalite.config.derive import Derived, bucket_size
from megalite.config.schema import Config
from megalite.config.size import ModelSize


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
    def buckets(self) -> list[PlacedBucket[Weight]]:
        """In the order in which they travel."""
        stages = {number: weights(self.size, stage) for number, stage in enumerate(self.stages)}
        untied = [weight for stage in stages.values() for weight in stage if not self._is_tied(weight)]
        found = place(
            stages,
            sized=lambda weight: (self._elements(weight), self._kind(weight)),
            is_tied=self._is_tied,
            bucket_size=bucket_size(
                self.config.parallel, self.derived.data_parallel_size, sum(map(self._elements, untied))
            ),
            shards=self.derived.optimizer_shards,
        )
        # Where both ends are here they share one matrix.
        return [bucket for bucket in found if not bucket.tied] + [bucket for bucket in found if bucket.tied][:1]

    @property
    def elements(self) -> int:
        """Of all buckets, with padding."""
        return sum(map(len, self.buckets))

    @property
    def lent(self) -> int:
        """Elements of the memory that gradients have besides until they are summed."""
        if not self.config.parallel.shards_gradients:
            return 0
        untied = rooms([len(bucket) for bucket in self.buckets if not bucket.tied])
        tied = sum(len(bucket) for bucket in self.buckets if bucket.tied)
        return max((room.stop for room in untied), default=0) + tied

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
    def with_matrices(self) -> list[PlacedBucket[Weight]]:
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

    def _own(self, bucket: PlacedBucket[Weight]) -> slice:
        return part_of(bucket.range, self.replica % self.derived.optimizer_shards, self.derived.optimizer_shards)

    def _is_tied(self, weight: Weight) -> bool:
        return self.size.tied_embeddings and weight.name == ENDS[0]

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
