"""The norm of the whole model's gradient, each logical element counted once, and clipping by it."""

import torch

from megalite.comm.collectives import all_reduce
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import ParallelMesh


def grad_norm(buffer: GradBuffer, mesh: ParallelMesh) -> float:
    """The L2 norm over the ranks that hold the model, summed in fp64. Replicas count on the first tp rank alone."""
    total = torch.zeros((), dtype=torch.float64, device=buffer.grads.device)
    for segment in buffer.segments:
        if not segment.treatment.replicated or mesh.tp.rank == 0:
            total += torch.linalg.vector_norm(buffer.grads[segment.range], dtype=torch.float64).square()
    return all_reduce(total, mesh.model).sqrt().item()


def clip(buffer: GradBuffer, norm: float, limit: float) -> None:
    """Scale the gradient down to norm `limit` where it is longer; 0 is no limit."""
    if 0 < limit < norm:
        buffer.grads.mul_(limit / (norm + 1e-6))
