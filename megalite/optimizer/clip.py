"""The norm of the whole model's gradient, each logical element counted once, and clipping by it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from megalite.comm.collectives import all_reduce
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import Group, ParallelMesh

_CHUNK = 1 << 16


def grad_norm(buffer: GradBuffer, mesh: ParallelMesh) -> float:
    """The L2 norm of the main grads over the ranks that hold the model."""
    grads = (buffer.grads[segment.range] for segment in buffer.owned if segment.kind.counts(mesh))
    return norm(grads, holders(buffer, mesh), mesh.device)


def holders(buffer: GradBuffer, mesh: ParallelMesh) -> Group:
    """The ranks that together own the model once."""
    return mesh.world if buffer.policy.shards > 1 else mesh.model


def norm(vectors: Iterable[Tensor], group: Group, device: torch.device) -> float:
    """The L2 norm of all the group's vectors together, summed in fp64."""
    # Chunks that stay in the cache, for torch widens a whole operand before it sums.
    chunks = [chunk for vector in vectors for chunk in vector.split(_CHUNK)]
    total = torch.zeros((), dtype=torch.float64, device=device)
    for chunk in chunks:
        total += torch.linalg.vector_norm(chunk, dtype=torch.float64).square()
    return all_reduce(total, group).sqrt().item()


def clip(buffer: GradBuffer, norm: float, limit: float) -> None:
    """Scale the gradient down to norm `limit` where it is longer; 0 is no limit."""
    if 0 < limit < norm:
        for segment in buffer.owned:
            buffer.grads[segment.range].mul_(limit / (norm + 1e-6))
