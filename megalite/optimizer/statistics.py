"""Numbers about the whole model, each logical element counted once in every layout. All ranks must ask for them."""

from collections.abc import Iterable

import torch

from megalite.comm.collectives import all_reduce
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import Group, ParallelMesh
from megalite.optimizer.clip import counts, holders, norm
from megalite.optimizer.optimizer import Optimizer


def params_norm(optimizer: Optimizer, mesh: ParallelMesh) -> float:
    """The L2 norm of the main params."""
    buffer = optimizer.buffer
    main = (main for segment, main in optimizer.mains() if counts(segment.kind, mesh))
    return norm(main, holders(buffer, mesh), mesh.device)


def num_parameters(buffer: GradBuffer, mesh: ParallelMesh) -> int:
    """How many elements the model has."""
    return _total((slot.spec.numel for slot in buffer.slots if counts(slot.kind, mesh)), mesh.model, mesh)


def num_zeros_in_grad(buffer: GradBuffer, mesh: ParallelMesh) -> int:
    """How many elements of the gradient are exactly zero; the padding of the vocabulary is none of them."""
    mine = [buffer.grads.of(piece) for piece in buffer.pieces if counts(piece.slot.kind, mesh)]
    return _total((grad.numel() - int(grad.count_nonzero()) for grad in mine), holders(buffer, mesh), mesh)


def _total(each: Iterable[int], group: Group, mesh: ParallelMesh) -> int:
    return int(all_reduce(torch.tensor(sum(each), device=mesh.device), group).item())
