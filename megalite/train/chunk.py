"""The model as the executor sees it."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from megalite.data.batch import MicroBatch
from megalite.model.context import Context
from megalite.ops.dropout import Draw
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
        with self.engine.timers("forward-compute", 2) if self.step is not None else nullcontext():
            return self.engine.model.loss(m.tokens, m.labels, m.loss_mask, context)

    def backward(self, output: Tensor, *, final: bool) -> None:
        if final:
            self.engine.buffer.expect_last()
        with self.engine.timers("backward-compute", 2):
            output.backward(torch.full_like(output, self.scale))

    def sync_grads(self) -> None:
        with self.engine.timers("all-grads-sync", 2):
            self.engine.buffer.finish()
