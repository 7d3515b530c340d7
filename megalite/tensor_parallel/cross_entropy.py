"""Cross entropy over a vocabulary split across tp, with one collective."""

from typing import Any

import torch
from torch import Tensor

from megalite.comm.collectives import all_gather
from megalite.gradient import main_dtype
from megalite.mesh import Group
from megalite.tensor_parallel.embedding import VocabShard

_ROWS = 64


class _VocabParallelCrossEntropy(torch.autograd.Function):
    """forward    loss = log(sum over v of exp(logit[v])) - logit[target]
               each rank reduces its own columns to (max, sum of exp, target logit); one all-gather joins them
    backward   dlogits = (softmax - onehot(target)) dloss
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, shard: VocabShard, tp: Group) -> Tensor:
        wide, real = main_dtype(logits.dtype), shard.stop - shard.start
        mine = (target >= shard.start) & (target < shard.stop)
        column = (target - shard.start).where(mine, 0).unsqueeze(-1)
        if real < logits.shape[-1]:
            # Columns that are padding take no part; a finite floor keeps a rank that is all padding free of NaN.
            logits[..., real:] = torch.finfo(logits.dtype).min
        # Slices of rows stay in the cache from the maximum to the softmax. The largest probability is 1 / sum of exp.
        probs = torch.empty(logits.shape, dtype=wide, device=logits.device)
        for x, y in zip(logits.flatten(0, -2).split(_ROWS), probs.flatten(0, -2).split(_ROWS), strict=True):
            torch.softmax(x, -1, dtype=wide, out=y)
        high, largest = logits.amax(-1).to(wide), probs.amax(-1)
        target_logit = logits.gather(-1, column).squeeze(-1).to(wide).where(mine, 0)

        parts = all_gather(torch.stack([high, 1 / largest, target_logit]).unsqueeze(0), tp)  # [tp, 3, s, b]
        highest = parts[:, 0].amax(0)
        total = (parts[:, 1] * (parts[:, 0] - highest).exp()).sum(0)
        ctx.save_for_backward(probs, (high - highest).exp() / (total * largest), column, mine)
        ctx.logits_dtype = logits.dtype
        return total.log() + highest - parts[:, 2].sum(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        probs, share, column, mine = ctx.saved_tensors
        dlogits = probs.mul_((grads[0] * share).unsqueeze(-1))  # in place: nothing else reads them
        dlogits.scatter_add_(-1, column, -(grads[0] * mine).unsqueeze(-1))
        return dlogits.to(ctx.logits_dtype), None, None, None


def vocab_parallel_cross_entropy(logits: Tensor, target: Tensor, *, shard: VocabShard, tp: Group) -> Tensor:
    """logits [s, b, padded vocabulary / tp], target [s, b] global ids -> loss [s, b] in at least fp32, in nats."""
    assert logits.shape[-1] == shard.rows, "logits must be this rank's part of the vocabulary"
    return _VocabParallelCrossEntropy.apply(logits, target, shard, tp)
