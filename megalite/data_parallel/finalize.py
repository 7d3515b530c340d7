"""What gradients still owe after the sum over dp."""

from collections.abc import Callable

import torch

from megalite.arith.treatment import Kind
from megalite.comm.collectives import all_reduce
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import Group, ParallelMesh


def reduce_owed(buffer: GradBuffer, mesh: ParallelMesh) -> None:
    """Sum over tp the gradients of replicas that saw only their part of the sequence or of the heads, and over the two
    ends of the pipeline those of tied embeddings; each in one coalesced all-reduce."""
    _reduce(buffer, mesh.tp, lambda kind: kind.owes_tp)
    _reduce(buffer, mesh.ends, lambda kind: kind.owes_ends)


def _reduce(buffer: GradBuffer, group: Group, owes: Callable[[Kind], bool]) -> None:
    owed = [buffer.grads.of(segment) for segment in buffer.owned if owes(segment.kind)]
    if group.size == 1 or not owed:
        return
    total = all_reduce(torch.cat(owed), group)
    for grads, part in zip(owed, total.split([len(g) for g in owed]), strict=True):
        grads.copy_(part)
