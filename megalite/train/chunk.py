"""A stage of the model as the executor sees it."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from megalite.data.batch import MicroBatch
from megalite.model.context import Context
from megalite.ops.dropout import Draw
from megalite.train.build import Engine


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One stage during one pass over a global batch, as the executor's chunk."""

    engine: Engine
    stage: int
    step: int | None = None
    """Dropout draws by it; None: nothing is dropped."""
    loss_grad: Tensor | None = None
    """The gradient that backward begins with, at the summed loss: []."""

    def empty_input(self, microbatch: MicroBatch) -> Tensor:
        return self.engine.stages[self.stage].empty_hidden(*microbatch.tokens.shape)

    def forward(self, x: Tensor | None, microbatch: MicroBatch) -> Tensor:
        m, draw, model = microbatch, None, self.engine.stages[self.stage]
        if self.step is not None:
            draw = Draw(seed=self.engine.seed, step=self.step, samples=m.sample_ids)
        context = Context(position_ids=m.position_ids, segment_ids=m.segment_ids, draw=draw)
        x = m.tokens if x is None else x
        with self.engine.timers("forward-compute", 2) if self.step is not None else nullcontext():
            if self.stage < self.engine.mail.last_stage:
                return model(x, context)
            return model.loss(x, m.labels, m.loss_mask, context)

    def backward(self, output: GradientEdge, grad: Tensor | None, *, final: bool, split: bool) -> None:
        if final:
            self.engine.buffer.expect_last(self.stage)
        keeping = self.engine.stages[self.stage].weight_grads.keeping() if split else nullcontext()
        with self.engine.timers("backward-compute", 2), keeping:
            torch.autograd.backward([output], [self.loss_grad if grad is None else grad])

    def weight_grads(self, *, final: bool) -> None:
        kept = self.engine.stages[self.stage].weight_grads
        if final:
            self.engine.buffer.expect_last(self.stage, kept.oldest)
        with self.engine.timers("backward-compute", 2):
            kept.compute_kept()

    def sync_grads(self) -> None:
        with self.engine.timers("all-grads-sync", 2):
            self.engine.buffer.flush(self.stage)
