"""The loss on held-out data."""

from collections.abc import Iterable

import torch

from megalite.comm.collectives import all_reduce
from megalite.data.batch import MicroBatch
from megalite.model.context import Context
from megalite.train.build import Run


@torch.no_grad()
def evaluate(run: Run, microbatches: Iterable[MicroBatch]) -> tuple[float, int]:
    """The summed loss over the micro-batches of all ranks, in nats, and the number of tokens that it counts."""
    totals = torch.zeros(2, dtype=torch.float64, device=run.mesh.device)
    for m in microbatches:
        context = Context(position_ids=m.position_ids)
        totals[0] += run.model.loss(m.tokens, m.labels, m.loss_mask, context)
        totals[1] += m.loss_mask.sum()
    loss, count = all_reduce(totals, run.mesh.dp).tolist()
    return loss, int(count)
