"""One training step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megalite.comm.collectives import all_reduce
from megalite.data.batch import MicroBatch
from megalite.data_parallel.finalize import reduce_over_tp
from megalite.model.context import Context
from megalite.ops.dropout import Draw
from megalite.optimizer.clip import clip, grad_norm
from megalite.pipeline_parallel import executor
from megalite.train.build import Run


@dataclass(frozen=True, kw_only=True)
class StepChunk:
    """The model during one step: it knows the step's dropout and how its loss is scaled."""

    run: Run
    step: int
    scale: float

    def forward(self, microbatch: MicroBatch) -> Tensor:
        draw = Draw(seed=self.run.seed, step=self.step, samples=microbatch.sample_ids)
        context = Context(position_ids=microbatch.position_ids, draw=draw)
        return self.run.model.loss(microbatch.tokens, microbatch.labels, microbatch.loss_mask, context)

    def backward(self, output: Tensor, *, final: bool) -> None:
        if final:
            self.run.buffer.expect_last()
        output.backward(torch.full_like(output, self.scale))

    def sync_grads(self) -> None:
        self.run.buffer.finish()


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step tells."""

    loss: float
    """The mean over the counted tokens, in nats."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float


def forward_backward(run: Run, microbatches: Sequence[MicroBatch], *, step: int) -> float:
    """Compute into main grads the gradient of the mean loss over the global batch's counted tokens; returns that loss.

    The number of tokens is known, and agreed on, before the first forward, so that gradients are only ever summed.
    """
    tokens = torch.stack([m.loss_mask.sum(dtype=torch.float64) for m in microbatches]).sum()
    count = max(all_reduce(tokens, run.mesh.dp).item(), 1.0)
    chunk = StepChunk(run=run, step=step, scale=1.0 / count)
    losses = executor.run(run.program, {0: chunk}, microbatches)
    reduce_over_tp(run.buffer, run.mesh.tp)
    return all_reduce(torch.stack(losses).sum(dtype=torch.float64), run.mesh.dp).item() / count


def train_step(run: Run, microbatches: Sequence[MicroBatch], *, step: int, consumed_samples: int) -> StepResult:
    """Update the weights once; `consumed_samples` have been trained on before.

    Raises FloatingPointError, before the weights are touched, where loss or gradient is not finite.
    """
    loss = forward_backward(run, microbatches, step=step)
    norm = grad_norm(run.buffer, run.mesh)
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise FloatingPointError(_not_finite(run, loss, norm, step))
    clip(run.buffer, norm, run.clip_grad)
    lr = run.learning_rate(consumed_samples)
    run.optimizer.step(lr=lr, weight_decay=run.weight_decay(consumed_samples))
    return StepResult(loss=loss, grad_norm=norm, learning_rate=lr)


def _not_finite(run: Run, loss: float, norm: float, step: int) -> str:
    bad = [slot.name for slot in run.buffer.slots if not run.buffer.grads[slot.range].isfinite().all()]
    return (
        f"iteration {step}: loss {loss}, gradient norm {norm}, rank {run.mesh.rank}: "
        f"{f'{len(bad)} gradients are not finite, {bad[-1]} among them' if bad else 'all gradients here are finite'}. "
        "The weights are those of the iteration before. Try a lower --lr, a longer warm-up, or fp32."
    )
