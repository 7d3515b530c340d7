"""The model: the layers of one pipeline stage, with the embedding before the first and the head after the last.

s sequence, e rows between tensor-parallel regions, b micro-batch, h hidden, v vocabulary columns of this tp rank
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from megalite.model.context import Context
from megalite.model.embedding import Embedding
from megalite.model.layer import Layer
from megalite.ops.rotary import rotary_angles
from megalite.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megalite.tensor_parallel.embedding import VocabParallelHead


class GPT(nn.Module):
    """tokens [b, s] -> logits [s, b, v]. `layers` is keyed by global layer number, so that names are global too."""

    rotary: Tensor | None

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: dict[int, Layer],
        final_norm: nn.Module,
        head: VocabParallelHead,
        rotary: Tensor | None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.final_norm, self.head = final_norm, head
        self.register_buffer("rotary", rotary, persistent=False)

    def forward(self, tokens: Tensor, context: Context) -> Tensor:
        if self.rotary is not None:
            context = replace(context, angles=rotary_angles(self.rotary, context.position_ids))
        x = self.embedding(tokens, context)
        for layer in self.layers.values():
            x = layer(x, context)
        return self.head(self.final_norm(x))

    def loss(self, tokens: Tensor, labels: Tensor, loss_mask: Tensor, context: Context) -> Tensor:
        """The summed cross entropy of the tokens that count: [] in at least fp32, in nats. All arguments [b, s]."""
        logits = self(tokens, context)
        losses = vocab_parallel_cross_entropy(logits, labels.t(), shard=self.head.shard, tp=self.head.layout.tp)
        return torch.sum(losses * loss_mask.t().to(losses.dtype))
