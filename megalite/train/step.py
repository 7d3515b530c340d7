"""One training step, and one step of evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megalite.comm.collectives import all_reduce
from megalite.data.batch import MicroBatch
from megalite.data_parallel.finalize import reduce_over_tp
from megalite.optimizer.clip import clip, grad_norm
from megalite.pipeline_parallel.executor import execute
from megalite.train.build import Engine
from megalite.train.chunk import Pass
from megalite.train.diagnose import not_finite


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step tells."""

    loss: float
    """The mean over the counted tokens, in nats."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float


def forward_backward(engine: Engine, microbatches: Sequence[MicroBatch], *, step: int) -> float:
    """Compute into main grads the gradient of the mean loss over the global batch's counted tokens; returns that loss.

    The number of tokens is known, and agreed on, before the first forward, so that gradients are only ever summed.
    """
    count = max(all_reduce(counted_tokens(microbatches), engine.mesh.dp).item(), 1.0)
    chunk = Pass(engine=engine, step=step, scale=1.0 / count)
    losses = execute(engine.program(len(microbatches)), {0: chunk}, microbatches)
    with engine.timers("all-grads-sync", 2):
        reduce_over_tp(engine.buffer, engine.mesh.tp)
    return all_reduce(torch.stack(losses).sum(dtype=torch.float64), engine.mesh.dp).item() / count


def counted_tokens(microbatches: Sequence[MicroBatch]) -> Tensor:
    """How many of this rank's tokens count for the loss: [] float64."""
    return torch.stack([m.loss_mask.sum(dtype=torch.float64) for m in microbatches]).sum()


@torch.no_grad()
def evaluate(engine: Engine, microbatches: Sequence[MicroBatch]) -> tuple[float, int]:
    """The summed loss over one global batch, in nats, and the number of tokens that it counts."""
    losses = execute(engine.evaluation(len(microbatches)), {0: Pass(engine=engine)}, microbatches)
    totals = torch.stack([torch.stack(losses).sum(dtype=torch.float64), counted_tokens(microbatches)])
    loss, count = all_reduce(totals, engine.mesh.dp).tolist()
    return loss, int(count)


def train_step(engine: Engine, microbatches: Sequence[MicroBatch], *, step: int, consumed_samples: int) -> StepResult:
    """Update the weights once; updates have been made with `consumed_samples` before: the schedules go by them.

    Raises FloatingPointError on every rank, before the weights are touched, where loss or gradient is not finite.
    """
    timers = engine.timers
    with timers("forward-backward"):
        loss = forward_backward(engine, microbatches, step=step)
    with timers("optimizer"):
        with timers("optimizer-clip-main-grad", 2):
            norm = grad_norm(engine.buffer, engine.mesh)
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise FloatingPointError(not_finite(engine, microbatches, loss=loss, norm=norm, step=step))
            clip(engine.buffer, norm, engine.clip_grad)
        lr = engine.learning_rate(consumed_samples)
        with timers("optimizer-inner-step", 2):
            engine.optimizer.step(lr=lr, weight_decay=engine.weight_decay(consumed_samples))
    return StepResult(loss=loss, grad_norm=norm, learning_rate=lr)
