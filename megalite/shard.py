"""How a local tensor sits in the global one: the record that each parameter states once.

Initialisation, gradient finalisation, the gradient norm and checkpoints all read this record and nothing else.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

Box = tuple[tuple[int, int], ...]
"""A (start, stop) range for each dimension of a global tensor."""


@dataclass(frozen=True, kw_only=True)
class Init:
    """How a tensor starts: normal with mean 0 and this `std`; uniform within `bound`; or else `constant` everywhere."""

    std: float = 0.0
    bound: float = 0.0
    constant: float = 0.0

    @property
    def is_random(self) -> bool:
        return self.std > 0 or self.bound > 0


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """The facts about one parameter.

    `global_shape` is the shape in which every rank's shard is one box: (groups, queries per group + 2, head dim, h)
    for QKV, (2, ffn, h) for gate and up, (vocabulary without padding, h) for embeddings. `split` is the range
    (start, stop) that this rank holds of dimension `split_dim`; a replica has `split_dim` None.
    """

    global_shape: tuple[int, ...]
    init: Init
    split_dim: int | None = None
    split: tuple[int, int] = (0, 0)
    sum_grad_over_tp: bool = False
    """Each tp rank holds a replica but saw only its part of the sequence: gradients must be summed over tp."""
    sum_grad_over_ends: bool = False
    """The first and the last pipeline rank hold a copy each, for the embedding and for the head that is tied to it."""

    @property
    def box(self) -> Box:
        """The part of the global tensor that this rank holds."""
        return tuple(self.split if d == self.split_dim else (0, n) for d, n in enumerate(self.global_shape))

    @property
    def numel(self) -> int:
        """Elements of the box."""
        return math.prod(stop - start for start, stop in self.box)

    def view(self, tensor: Tensor) -> Tensor:
        """The box as a view of the local tensor, or of another of its size; padding, at the end, is left out."""
        shape = [stop - start for start, stop in self.box]
        return tensor.view(-1)[: self.numel].view(shape)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One box of one logical tensor, with the memory that holds it: the unit of a checkpoint."""

    name: str
    global_shape: tuple[int, ...]
    box: Box
    tensor: Tensor = field(compare=False)

    @classmethod
    def of(cls, name: str, spec: ShardSpec, tensor: Tensor) -> "Shard":
        """The box that a local tensor, or another of its size, holds of a parameter."""
        return cls(name=name, global_shape=spec.global_shape, box=spec.box, tensor=spec.view(tensor))


def boxes_of_range(box: Box, start: int, stop: int) -> list[tuple[Box, slice]]:
    """A range of a box's elements, in their order in memory, as boxes, each with its own range.

    At most 2n - 1 of them for n dimensions: rows that are whole make one box, a row that is cut is cut again.
    """
    if start >= stop:
        return []
    if len(box) <= 1:
        low = box[0][0] if box else 0
        return [(((low + start, low + stop),) if box else (), slice(start, stop))]
    (low, _), *inner = box
    row = math.prod(high - first for first, high in inner)
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        return _in_row(low, tuple(inner), row, start // row, start, stop)
    found = _in_row(low, tuple(inner), row, first - 1, start, first * row) if start % row else []
    if first < last:
        found.append((((low + first, low + last), *inner), slice(first * row, last * row)))
    return found + _in_row(low, tuple(inner), row, last, last * row, stop)


def _in_row(low: int, inner: Box, row: int, number: int, start: int, stop: int) -> list[tuple[Box, slice]]:
    """`boxes_of_range` for a range within the row of this number."""
    cut = boxes_of_range(inner, start - number * row, stop - number * row)
    outer = (low + number, low + number + 1)
    return [((outer, *box), slice(r.start + number * row, r.stop + number * row)) for box, r in cut]


def replicated(shape: tuple[int, ...], *, init: Init, sum_grad_over_tp: bool) -> ShardSpec:
    """The record of a parameter that every tp rank holds whole."""
    return ShardSpec(global_shape=shape, init=init, sum_grad_over_tp=sum_grad_over_tp)


def parameters_with_specs(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, ShardSpec]]:
    """Each parameter once, with its global name and record.

    A module states the records of its own parameters in `shard_specs`, keyed by attribute; a tied parameter is
    stated by its first owner alone. A parameter without a record is a mistake of ours.
    """
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for attribute, spec in getattr(owner, "shard_specs", {}).items():
            parameter = getattr(owner, attribute)
            seen.add(id(parameter))
            yield f"{prefix}.{attribute}" if prefix else attribute, parameter, spec
    unstated = [name for name, parameter in module.named_parameters() if id(parameter) not in seen]
    assert not unstated, f"parameters without a ShardSpec: {unstated}"


def parameters_by_stage(stages: Mapping[int, nn.Module]) -> dict[int, list[tuple[str, nn.Parameter, ShardSpec]]]:
    """The parameters of each stage; one that several stages share is the first's."""
    seen: set[int] = set()
    found = {}
    for stage, module in sorted(stages.items()):
        found[stage] = [entry for entry in parameters_with_specs(module) if id(entry[1]) not in seen]
        seen |= {id(parameter) for _, parameter, _ in found[stage]}
    return found
