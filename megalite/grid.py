"""Rank arithmetic: axis sizes and an order to lists of ranks. Pure, so a layout can be checked without a process."""

import math
from dataclasses import dataclass, field
from itertools import product

from megalite.config.derive import data_parallel_size
from megalite.config.parallel import Parallel

AXES = ("tp", "cp", "ep", "dp", "pp")
"""The axes of a job, fastest first: neighbouring ranks differ in tp, so tensor parallelism stays within a node."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The ranks 0..world_size-1 laid out over named axes, the first axis of `order` varying fastest.

    An axis without a size has size 1. The axis dp has two axes in itself: `shards`, neighbours that share out one
    instance of the optimizer, and `instances`.
    """

    sizes: dict[str, int]
    order: tuple[str, ...] = AXES
    instances: int = 1
    strides: dict[str, int] = field(init=False)
    world_size: int = field(init=False)

    def __post_init__(self) -> None:
        unknown = [axis for axis in self.sizes if axis not in self.order]
        if unknown:
            raise ValueError(f"unknown axes {unknown}; the order is {'-'.join(self.order)}")
        stride, strides = 1, {}
        for axis in self.order:
            strides[axis] = stride
            stride *= self.size(axis)
        strides |= {"shards": strides["dp"], "instances": strides["dp"] * self.size("shards")}
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "world_size", stride)

    def size(self, *axes: str) -> int:
        """The number of ranks in a group along these axes."""
        inner = {"shards": self.sizes.get("dp", 1) // self.instances, "instances": self.instances}
        return math.prod(inner[axis] if axis in inner else self.sizes.get(axis, 1) for axis in axes)

    def coordinate(self, rank: int, axis: str) -> int:
        """The position of a rank along one axis."""
        return rank // self.strides[axis] % self.size(axis)

    def ranks(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The ranks that differ from `rank` only along these axes, ascending: its group."""
        origin = rank - sum(self.coordinate(rank, axis) * self.strides[axis] for axis in axes)
        steps = [[i * self.strides[axis] for i in range(self.size(axis))] for axis in axes]
        return tuple(sorted(origin + sum(offsets) for offsets in product(*steps)))

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """Every group along these axes, in the order of their lowest ranks; together they hold each rank once."""
        return sorted({self.ranks(rank, *axes) for rank in range(self.world_size)})


def grid_of(parallel: Parallel, world_size: int) -> Grid:
    """The layout of a job. Pipeline ranks are far apart, for they speak least, unless the other order is asked for."""
    sizes = {
        "tp": parallel.tensor_model_parallel_size,
        "pp": parallel.pipeline_model_parallel_size,
        "dp": data_parallel_size(parallel, world_size),
    }
    order = ("tp", "cp", "ep", "pp", "dp") if parallel.use_tp_pp_dp_mapping else AXES
    return Grid(sizes=sizes, order=order, instances=parallel.num_distributed_optimizer_instances)
