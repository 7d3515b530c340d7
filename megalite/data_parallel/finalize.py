"""What gradients still owe after the sum over dp."""

import torch

from megalite.comm.collectives import all_reduce
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import Group


def reduce_over_tp(buffer: GradBuffer, tp: Group) -> None:
    """Sum over tp the gradients of replicas that saw only their part of the sequence, in one coalesced all-reduce."""
    owed = [buffer.grads[segment.range] for segment in buffer.segments if segment.kind.owes_tp]
    if tp.size == 1 or not owed:
        return
    total = all_reduce(torch.cat(owed), tp)
    for grads, part in zip(owed, total.split([len(g) for g in owed]), strict=True):
        grads.copy_(part)
