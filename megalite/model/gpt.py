"""The model: the layers of one pipeline stage, with the embedding before the first and the head after the last.

s sequence, e rows between tensor-parallel regions, b micro-batch, h hidden, v vocabulary columns of this tp rank
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from megalite.gradient import WeightGrads
from megalite.model.context import Context
from megalite.model.layer import Block, Layer
from megalite.ops.registry import Kernels
from megalite.ops.rotary import rotary_angles
from megalite.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megalite.tensor_parallel.embedding import VocabParallelHead
from megalite.tensor_parallel.layout import TensorParallel


class GPT(nn.Module):
    """tokens [b, s] -> logits [s, b, v]; a stage takes, or gives, hidden [e, b, h] where it is not the first, or last.

    `layers` is keyed by global layer number, so that names are global too; `blocks` runs them. Of a stage without the
    embedding, `embedding` passes hidden activations on; without the loss, `final_norm` and `head` are identities.
    """

    rotary: Tensor | None

    def __init__(
        self,
        *,
        embedding: nn.Module,
        layers: dict[int, Layer],
        blocks: Sequence[Block],
        final_norm: nn.Module,
        head: VocabParallelHead | nn.Identity,
        rotary: Tensor | None,
        weight_grads: WeightGrads,
        kernels: Kernels,
        layout: TensorParallel,
        hidden_size: int,
        hidden_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.blocks, self.final_norm, self.head = blocks, final_norm, head
        self.register_buffer("rotary", rotary, persistent=False)
        self.weight_grads, self.layout, self.hidden_size = weight_grads, layout, hidden_size
        self.kernels = kernels
        self.hidden_dtype, self.device = hidden_dtype, device

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.head(self.final_norm(self.hidden(x, context)))

    def hidden(self, x: Tensor, context: Context) -> Tensor:
        """What the head is given: [e, b, h], before the final norm."""
        if self.rotary is not None:
            context = replace(context, angles=rotary_angles(self.rotary, context.position_ids))
        x = self.embedding(x, context)
        for block in self.blocks:
            x = block(x, context)
        return x

    def loss(self, x: Tensor, labels: Tensor, loss_mask: Tensor, context: Context) -> Tensor:
        """The summed cross entropy of the tokens that count: [] in at least fp32, in nats. labels, loss_mask [b, s]."""
        assert isinstance(self.head, VocabParallelHead), "the last stage has the loss"
        logits = self(x, context)
        losses = vocab_parallel_cross_entropy(
            logits, labels.t(), shard=self.head.shard, tp=self.layout.tp, kernels=self.kernels
        )
        return torch.sum(losses * loss_mask.t().to(losses.dtype))

    def empty_hidden(self, batch: int, sequence: int) -> Tensor:
        """Memory for what passes between two stages: [e, b, h]."""
        rows = self.layout.rows(sequence)
        shape = (rows.stop - rows.start, batch, self.hidden_size)
        return torch.empty(shape, dtype=self.hidden_dtype, device=self.device)
