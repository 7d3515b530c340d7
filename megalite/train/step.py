"""One training step, and one step of evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megalite.comm.collectives import all_reduce
from megalite.data.batch import MicroBatch
from megalite.data_parallel.finalize import reduce_owed
from megalite.optimizer.clip import clip, grad_norm
from megalite.pipeline_parallel.executor import execute, unwatched
from megalite.train.build import Engine
from megalite.train.chunk import Pass
from megalite.train.diagnose import not_finite


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step tells."""

    loss: float
    """The mean over the counted tokens, in nats."""
    grad_norm: float
    """Before clipping, without the loss scale."""
    learning_rate: float
    skipped: bool = False
    """Whether no update was made, since loss or gradient was not finite."""


def forward_backward(engine: Engine, microbatches: Sequence[MicroBatch], *, step: int) -> float:
    """Compute into main grads the gradient of the mean loss over the global batch's counted tokens; returns that loss.

    The gradient is multiplied by the loss scale. The number of tokens is known, and agreed on, before the first
    forward, so that gradients are only ever summed.
    """
    count = max(all_reduce(counted_tokens(microbatches), engine.mesh.replicas).item(), 1.0)
    seed = engine.loss_scale.value / count
    loss_grad = torch.tensor(seed, dtype=engine.buffer.grads.vector.dtype, device=engine.mesh.device)
    chunks = {stage: Pass(engine=engine, stage=stage, step=step, loss_grad=loss_grad) for stage in engine.stages}
    losses = execute(engine.program(len(microbatches)), chunks, microbatches, engine.mail, engine.watch)
    with engine.timers("all-grads-sync", 2):
        engine.buffer.finish()
        reduce_owed(engine.buffer, engine.mesh)
    return all_reduce(summed(losses, engine), engine.mesh.replicas).item() / count


def summed(losses: Sequence[Tensor], engine: Engine) -> Tensor:
    """The losses of the replica that this rank is of, summed: [] float64, on every rank of its pipeline."""
    total = torch.zeros((), dtype=torch.float64, device=engine.mesh.device)
    for loss in losses:
        total += loss
    return all_reduce(total, engine.mesh.pp)


def counted_tokens(microbatches: Sequence[MicroBatch]) -> Tensor:
    """How many of this rank's tokens count for the loss: [] float64."""
    return torch.stack([m.loss_mask.sum(dtype=torch.float64) for m in microbatches]).sum()


@torch.no_grad()
def evaluate(engine: Engine, microbatches: Sequence[MicroBatch]) -> tuple[float, int]:
    """The summed loss over one global batch, in nats, and the number of tokens that it counts."""
    chunks = {stage: Pass(engine=engine, stage=stage) for stage in engine.stages}
    losses = execute(engine.evaluation(len(microbatches)), chunks, microbatches, engine.mail, unwatched)
    totals = torch.stack([summed(losses, engine), counted_tokens(microbatches)])
    loss, count = all_reduce(totals, engine.mesh.replicas).tolist()
    return loss, int(count)


def train_step(engine: Engine, microbatches: Sequence[MicroBatch], *, step: int, consumed_samples: int) -> StepResult:
    """Update the weights once; updates have been made with `consumed_samples` before: the schedules go by them.

    Where loss or gradient is not finite, on any rank, no rank makes an update. Raises FloatingPointError on every rank
    where that is not to be passed over, and no lower loss scale could mend it.
    """
    timers, scale = engine.timers, engine.loss_scale
    with timers("forward-backward"):
        loss = forward_backward(engine, microbatches, step=step)
    with timers("optimizer"):
        with timers("optimizer-clip-main-grad", 2):
            norm = grad_norm(engine.buffer, engine.mesh) / scale.value
            skipped = not math.isfinite(loss + norm)
            # The scale acts in backward alone: it cannot have spoilt the loss.
            if skipped and engine.check_for_nan and not (math.isfinite(loss) and scale.may_fall):
                raise FloatingPointError(not_finite(engine, microbatches, loss=loss, norm=norm, step=step))
            if not skipped:
                clip(engine.buffer, norm, engine.clip_grad, scale=scale.value)
            scale.update(overflow=skipped)
        lr = engine.schedules.learning_rate(consumed_samples)
        if not skipped:
            with timers("optimizer-inner-step", 2):
                engine.optimizer.step(
                    lr=lr,
                    decoupled_lr=engine.schedules.decoupled_learning_rate(consumed_samples),
                    weight_decay=engine.schedules.weight_decay(consumed_samples),
                )
    return StepResult(loss=loss, grad_norm=norm, learning_rate=lr, skipped=skipped)
