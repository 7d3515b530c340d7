"""The norm of the whole model's gradient, each logical element counted once, and clipping by it."""

import torch
from torch import Tensor

from megalite.comm.collectives import all_reduce
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import ParallelMesh

_CHUNK = 1 << 16


def grad_norm(buffer: GradBuffer, mesh: ParallelMesh) -> float:
    """The L2 norm of the main grads over the ranks that hold the model."""
    return norm(buffer.grads, buffer, mesh)


def norm(vector: Tensor, buffer: GradBuffer, mesh: ParallelMesh) -> float:
    """The L2 norm of a vector laid out like the buffer, summed in fp64."""
    mine = [segment.range for segment in buffer.segments if segment.kind.counts(mesh)]
    # Chunks that stay in the cache, for torch widens a whole operand before it sums.
    chunks = [chunk for where in mine for chunk in vector[where].split(_CHUNK)]
    total = torch.zeros((), dtype=torch.float64, device=vector.device)
    for chunk in chunks:
        total += torch.linalg.vector_norm(chunk, dtype=torch.float64).square()
    return all_reduce(total, mesh.model).sqrt().item()


def clip(buffer: GradBuffer, norm: float, limit: float) -> None:
    """Scale the gradient down to norm `limit` where it is longer; 0 is no limit."""
    if 0 < limit < norm:
        buffer.grads.mul_(limit / (norm + 1e-6))
