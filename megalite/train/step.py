"""One training step, and one step of evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megalite.comm.collectives import all_gather_object, all_reduce
from megalite.data.batch import MicroBatch
from megalite.data_parallel.finalize import reduce_over_tp
from megalite.model.context import Context
from megalite.ops.dropout import Draw
from megalite.optimizer.clip import clip, grad_norm
from megalite.pipeline_parallel.executor import execute
from megalite.train.build import Engine


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The model during one pass over a global batch, as the executor's chunk."""

    engine: Engine
    step: int | None = None
    """Dropout draws by it; None: nothing is dropped."""
    scale: float = 1.0
    """Of the summed loss, in backward."""

    def forward(self, microbatch: MicroBatch) -> Tensor:
        m, draw = microbatch, None
        if self.step is not None:
            draw = Draw(seed=self.engine.seed, step=self.step, samples=m.sample_ids)
        context = Context(position_ids=m.position_ids, segment_ids=m.segment_ids, draw=draw)
        return self.engine.model.loss(m.tokens, m.labels, m.loss_mask, context)

    def backward(self, output: Tensor, *, final: bool) -> None:
        if final:
            self.engine.buffer.expect_last()
        output.backward(torch.full_like(output, self.scale))

    def sync_grads(self) -> None:
        self.engine.buffer.finish()


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
    losses = execute(engine.program, {0: chunk}, microbatches)
    reduce_over_tp(engine.buffer, engine.mesh.tp)
    return all_reduce(torch.stack(losses).sum(dtype=torch.float64), engine.mesh.dp).item() / count


def counted_tokens(microbatches: Sequence[MicroBatch]) -> Tensor:
    """How many of this rank's tokens count for the loss: [] float64."""
    return torch.stack([m.loss_mask.sum(dtype=torch.float64) for m in microbatches]).sum()


@torch.no_grad()
def evaluate(engine: Engine, microbatches: Sequence[MicroBatch]) -> tuple[float, int]:
    """The summed loss over one global batch, in nats, and the number of tokens that it counts."""
    losses = execute(engine.evaluation, {0: Pass(engine=engine)}, microbatches)
    totals = torch.stack([torch.stack(losses).sum(dtype=torch.float64), counted_tokens(microbatches)])
    loss, count = all_reduce(totals, engine.mesh.dp).tolist()
    return loss, int(count)


def train_step(engine: Engine, microbatches: Sequence[MicroBatch], *, step: int, consumed_samples: int) -> StepResult:
    """Update the weights once; `consumed_samples` have been trained on before.

    Raises FloatingPointError on every rank, before the weights are touched, where loss or gradient is not finite.
    """
    loss = forward_backward(engine, microbatches, step=step)
    norm = grad_norm(engine.buffer, engine.mesh)
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise FloatingPointError(_not_finite(engine, loss, norm, step))
    clip(engine.buffer, norm, engine.clip_grad)
    lr = engine.learning_rate(consumed_samples)
    engine.optimizer.step(lr=lr, weight_decay=engine.weight_decay(consumed_samples))
    return StepResult(loss=loss, grad_norm=norm, learning_rate=lr)


def _not_finite(engine: Engine, loss: float, norm: float, step: int) -> str:
    buffer = engine.buffer
    bad = [slot.name for slot in buffer.slots if not buffer.grads[slot.range].isfinite().all()]
    named = [name for names in all_gather_object(bad, engine.mesh.model) for name in names]
    what = f"{len(named)} gradients are not finite, {named[-1]} among them" if named else "the gradients are finite"
    return (
        f"iteration {step}: loss {loss}, gradient norm {norm}; {what}. "
        "The weights are still those of the iteration before. Try a lower --lr, a longer warm-up, or fp32."
    )
