"""The norm of the whole model's gradient, each logical element counted once, and clipping by it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from megalite.arith.treatment import Kind
from megalite.comm.collectives import all_reduce
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import Group, ParallelMesh

_CHUNK = 1 << 16


def grad_norm(buffer: GradBuffer, mesh: ParallelMesh) -> float:
    """The L2 norm of the main grads over the ranks that hold the model; not finite on all where it is not on one."""
    counted: list[Tensor] = []
    replicas: list[Tensor] = []
    for segment in buffer.owned:
        (counted if counts(segment.kind, mesh) else replicas).append(buffer.grads.of(segment))
    return norm(counted, holders(buffer, mesh), mesh.device, replicas=replicas)


def counts(kind: Kind, mesh: ParallelMesh) -> bool:
    """Whether this rank counts elements of the kind, so that `holders` count each logical element once."""
    return (mesh.tp.rank == 0 or not kind.replicated) and (mesh.ends.rank == 0 or not kind.owes_ends)


def holders(buffer: GradBuffer, mesh: ParallelMesh) -> Group:
    """The ranks that together own the model once."""
    return mesh.owners if buffer.policy.shards > 1 else mesh.model


def norm(vectors: Iterable[Tensor], group: Group, device: torch.device, replicas: Iterable[Tensor] = ()) -> float:
    """The L2 norm of all the group's vectors together, summed in fp64.

    `replicas` are counted elsewhere, and make it NaN where they are not finite.
    """
    total = _square(vectors, device) + 0 * _square(replicas, device)
    return all_reduce(total, group).sqrt().item()


def _square(vectors: Iterable[Tensor], device: torch.device) -> Tensor:
    # Chunks that stay in the cache, for torch widens a whole operand before it sums.
    chunks = [chunk for vector in vectors for chunk in vector.split(_CHUNK)]
    total = torch.zeros((), dtype=torch.float64, device=device)
    for chunk in chunks:
        total += torch.linalg.vector_norm(chunk, dtype=torch.float64).square()
    return total


def clip(buffer: GradBuffer, norm: float, limit: float, *, scale: float) -> None:
    """Take the loss scale off the gradient, and shorten it to norm `limit` where it is longer; 0 is no limit.

    `norm` is that without the scale.
    """
    factor = (limit / (norm + 1e-6) if 0 < limit < norm else 1.0) / scale
    if factor != 1:
        buffer.scale_grads(factor)
