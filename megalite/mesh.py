"""Process groups as values: a frozen mesh is built once and handed down; nothing looks a group up."""

import datetime
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from megalite.environment import Launch
from megalite.grid import Grid
from megalite.observe.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that communicate. A group of size 1 has no handle, and its collectives do nothing."""

    name: str
    ranks: tuple[int, ...]
    rank: int
    """The position of this process in `ranks`."""
    handle: dist.ProcessGroup | None = None
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True, kw_only=True)
class ParallelMesh:
    """The groups of one rank."""

    grid: Grid
    rank: int
    device: torch.device
    tp: Group
    dp: Group
    replicas: Group
    """The ranks of dp once more, with a queue of their own: small facts do not wait there for buckets."""
    shards: Group
    """The ranks of dp that share out one instance of the optimizer."""
    instances: Group
    """The ranks of dp that own the same, one of each instance."""
    owners: Group
    """tp x pp x shards: the ranks that together hold one instance of the optimizer."""
    pp: Group
    ends: Group
    """The first and the last rank of pp; a rank between them is a group of its own."""
    model: Group
    """tp x pp: the ranks that together hold one replica of the model."""
    world: Group


def build_mesh(grid: Grid, *, rank: int, device: torch.device, timeout: datetime.timedelta) -> ParallelMesh:
    """Make the groups of `rank`. Every rank of the grid must call this, at the same point of its program.

    A collective that waits longer than `timeout` for the other ranks fails.
    """

    def group(name: str, *axes: str) -> Group:
        return joined(name, grid.ranks(rank, *axes))

    def joined(name: str, ranks: tuple[int, ...], *, fewest: int = 2) -> Group:
        # Only members take part, so that several meshes can live side by side in a larger job.
        handle = None
        if len(ranks) >= fewest:
            handle = dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)
        return Group(name=name, ranks=ranks, rank=ranks.index(rank), handle=handle)

    pp, dp, world = group("pp", "pp"), group("dp", "dp"), group("world", *grid.order)
    several = grid.instances > 1
    mesh = ParallelMesh(
        grid=grid,
        rank=rank,
        device=device,
        tp=group("tp", "tp"),
        dp=dp,
        replicas=group("replicas", "dp"),
        shards=group("shards", "shards") if several else dp,
        instances=group("instances", "instances"),
        owners=group("owners", *(axis for axis in grid.order if axis != "dp"), "shards") if several else world,
        pp=pp,
        ends=Group(name="ends", ranks=(rank,), rank=0),
        model=group("model", "tp", "pp"),
        world=world,
    )
    if pp.size == 1:
        return mesh
    # A rank between the ends makes one as well, of itself: torch names a group by how many its members made before it.
    ends = (rank,) if 0 < pp.rank < pp.size - 1 else (pp.ranks[0], pp.ranks[-1])
    return replace(mesh, ends=joined("ends", ends, fewest=1))


def on_host(group: Group, *, name: str, timeout: datetime.timedelta) -> Group:
    """The ranks of a group once more, with a queue of their own that moves what is on the host, whatever the backend.

    All of them must call it, at the same point of their program. A collective fails after `timeout`.
    """
    handle = None
    if group.size > 1:
        handle = dist.new_group(list(group.ranks), timeout, "gloo", use_local_synchronization=True)
    return replace(group, name=name, handle=handle, traffic=Traffic())


def start(grid: Grid, *, launch: Launch, backend: str, timeout_minutes: float, device: torch.device) -> ParallelMesh:
    """Join the other processes of this launch and build the mesh. One process needs no rendezvous."""
    timeout = datetime.timedelta(minutes=timeout_minutes)
    if launch.world_size > 1:
        dist.init_process_group(
            backend,
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timeout,
        )
    return build_mesh(grid, rank=launch.rank, device=device, timeout=timeout)


def stop() -> None:
    """Leave the job; harmless where none was joined."""
    if dist.is_initialized():
        dist.destroy_process_group()
