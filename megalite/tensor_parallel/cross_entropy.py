"""Cross entropy over a vocabulary split across tp, with one collective."""

from typing import Any

import torch
from torch import Tensor

from megalite.comm.collectives import all_gather
from megalite.mesh import Group
from megalite.ops.cross_entropy import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from megalite.ops.registry import Kernels
from megalite.tensor_parallel.embedding import VocabShard


class _VocabParallelCrossEntropy(torch.autograd.Function):
    """forward    loss = log(sum over v of exp(logit[v])) - logit[target]
               each rank reduces its own columns to (max, sum of exp, target logit); one all-gather joins them
    backward   dlogits = (softmax - onehot(target)) dloss, in the memory of the logits, which nothing else reads
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, shard: VocabShard, tp: Group, kernels: Kernels) -> Tensor:
        stats = kernels[CROSS_ENTROPY](logits, target, shard.start, shard.stop - shard.start)
        parts = all_gather(stats.view(1, 3, *target.shape), tp)  # [tp, 3, s, b]
        highest = parts[:, 0].amax(0)
        total = (parts[:, 1] * (parts[:, 0] - highest).exp()).sum(0)
        log_sum = total.log() + highest
        ctx.save_for_backward(logits, target, log_sum)
        ctx.shard, ctx.kernels = shard, kernels
        return log_sum - parts[:, 2].sum(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (logits, target, log_sum), shard = ctx.saved_tensors, ctx.shard
        ctx.kernels[CROSS_ENTROPY_BACKWARD](logits, target, log_sum, grads[0], shard.start, shard.stop - shard.start)
        return logits, None, None, None, None


def vocab_parallel_cross_entropy(
    logits: Tensor, target: Tensor, *, shard: VocabShard, tp: Group, kernels: Kernels
) -> Tensor:
    """logits [s, b, padded vocabulary / tp], target [s, b] global ids -> loss [s, b] in at least fp32, in nats.

    Backward overwrites the logits with their gradient.
    """
    assert logits.shape[-1] == shard.rows, "logits must be this rank's part of the vocabulary"
    return _VocabParallelCrossEntropy.apply(logits, target, shard, tp, kernels)
