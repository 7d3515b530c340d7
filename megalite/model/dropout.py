"""Dropout on hidden activations."""

from torch import Tensor, nn

from megalite.model.context import Context
from megalite.ops.dropout import hidden_dropout
from megalite.tensor_parallel.layout import TensorParallel


class HiddenDropout(nn.Module):
    """Drops elements of x [e, b, h] by their place in the model and in the global batch; alike in every layout."""

    def __init__(self, p: float, *, site: str, layer: int, layout: TensorParallel) -> None:
        super().__init__()
        self.p, self.site, self.layer, self.layout = p, site, layer, layout

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if context.draw is None or self.p == 0:
            return x
        rows = self.layout.rows(context.position_ids.shape[1])
        return hidden_dropout(x, self.p, draw=context.draw, site=self.site, layer=self.layer, rows=rows)
