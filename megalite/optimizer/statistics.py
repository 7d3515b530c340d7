"""Numbers about the whole model, each logical element counted once in every layout. All ranks must ask for them."""

import torch

from megalite.comm.collectives import all_reduce
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import ParallelMesh
from megalite.optimizer.clip import norm
from megalite.optimizer.optimizer import Optimizer


def params_norm(optimizer: Optimizer, mesh: ParallelMesh) -> float:
    """The L2 norm of the main params."""
    return norm(optimizer.main, optimizer.buffer, mesh)


def num_parameters(buffer: GradBuffer, mesh: ParallelMesh) -> int:
    """How many elements the model has."""
    total = sum(slot.spec.view(slot.parameter).numel() for slot in buffer.slots if slot.kind.counts(mesh))
    return int(all_reduce(torch.tensor(total, device=buffer.grads.device), mesh.model).item())


def num_zeros_in_grad(buffer: GradBuffer, mesh: ParallelMesh) -> int:
    """How many elements of the gradient are exactly zero; the padding of the vocabulary is none of them."""
    total = torch.zeros((), dtype=torch.int64, device=buffer.grads.device)
    for slot in buffer.slots:
        if slot.kind.counts(mesh):
            grad = slot.spec.view(buffer.grads[slot.range])
            total += grad.numel() - grad.count_nonzero()
    return int(all_reduce(total, mesh.model).item())
