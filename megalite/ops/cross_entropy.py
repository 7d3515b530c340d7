"""Cross entropy over a part of a vocabulary: what each row gives to the loss, and its gradient in the logits' place."""

import torch
from torch import Tensor

from megalite.ops.registry import Op


def _rows_at_once(logits: Tensor) -> int:
    """On a CPU a slice stays in the cache from one pass to the next; on a GPU few launches count."""
    return max(1, (1 << 17 if logits.device.type == "cpu" else 1 << 27) // max(1, logits.shape[-1]))


def cross_entropy_reference(logits: Tensor, target: Tensor, first: int, cols: int) -> Tensor:
    """logits [..., padded], target [...] ids of the whole vocabulary, of which `cols` from `first` on are here.

    -> [3, rows] in at least fp32: the largest logit, the sum of exp(logit - that), the target's logit, or 0 elsewhere.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    rows, ids = logits.flatten(0, -2)[:, :cols], target.flatten()
    stats = torch.empty(3, len(rows), dtype=wide, device=logits.device)
    if cols == 0:  # all of this part is padding
        stats[0], stats[1:] = torch.finfo(torch.float32).min, 0
        return stats
    # The largest probability is 1 / sum of exp(logit - largest).
    slices = (part.split(_rows_at_once(logits)) for part in (rows, stats[0], stats[1]))
    for x, high, total in zip(*slices, strict=True):
        high.copy_(x.amax(-1))
        torch.reciprocal(torch.softmax(x, -1, dtype=wide).amax(-1), out=total)
    mine = (ids >= first) & (ids < first + cols)
    stats[2] = rows.gather(-1, (ids - first).where(mine, 0).unsqueeze(-1)).squeeze(-1).to(wide).where(mine, 0)
    return stats


def cross_entropy_backward_reference(
    logits: Tensor, target: Tensor, log_sum: Tensor, dloss: Tensor, first: int, cols: int
) -> None:
    """In place: logits become (exp(logit - log_sum) - onehot(target)) dloss, padding 0. log_sum and dloss [...]."""
    rows, ids = logits.flatten(0, -2), target.flatten()
    log_sum, dloss = log_sum.reshape(-1, 1), dloss.reshape(-1, 1)
    mine = ((ids >= first) & (ids < first + cols)).unsqueeze(-1)
    column = (ids - first).unsqueeze(-1).where(mine, 0)
    at_target = ((rows.gather(-1, column) - log_sum).exp_() - 1) * dloss
    slices = (part.split(_rows_at_once(logits)) for part in (rows[:, :cols], log_sum, dloss))
    for x, total, scale in zip(*slices, strict=True):
        if x.dtype == total.dtype:
            x.sub_(total).exp_().mul_(scale)
        else:
            x.copy_((x - total).exp_().mul_(scale))
    rows[:, cols:] = 0
    rows.scatter_(-1, column, at_target.to(rows.dtype).where(mine, rows.gather(-1, column)))


CROSS_ENTROPY = Op(
    "cross_entropy(Tensor logits, Tensor target, int first, int cols) -> Tensor", cross_entropy_reference
)
CROSS_ENTROPY_BACKWARD = Op(
    "cross_entropy_backward(Tensor(a!) logits, Tensor target, Tensor log_sum, Tensor dloss, int first, int cols) -> ()",
    cross_entropy_backward_reference,
)
