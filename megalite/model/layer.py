"""One transformer layer, pre-norm."""

from collections.abc import Callable

from torch import Tensor, nn

from megalite.model.attention import Attention
from megalite.model.context import Context
from megalite.model.dropout import HiddenDropout

Block = Callable[[Tensor, Context], Tensor]
"""A part of the residual stream, x [e, b, h] -> [e, b, h]: a layer, or several."""


class Layer(nn.Module):
    """x [e, b, h] -> [e, b, h].

    x --+-- norm -- attention -- dropout -- + --+-- norm -- mlp -- dropout -- + -->
        |___________________________________|   |_____________________________|
    """

    def __init__(
        self,
        *,
        attention_norm: nn.Module,
        attention: Attention,
        attention_dropout: HiddenDropout,
        mlp_norm: nn.Module,
        mlp: nn.Module,
        mlp_dropout: HiddenDropout,
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention, self.attention_dropout = attention_norm, attention, attention_dropout
        self.mlp_norm, self.mlp, self.mlp_dropout = mlp_norm, mlp, mlp_dropout

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = x + self.attention_dropout(self.attention(self.attention_norm(x), context), context)
        return x + self.mlp_dropout(self.mlp(self.mlp_norm(x)), context)


class PostNormResidualLayer(Layer):
    """The same, its residuals taken from behind the norms.

    x -- norm --+-- attention -- dropout -- + -- norm --+-- mlp -- dropout -- + -->
                |___________________________|           |_____________________|
    """

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = self.attention_norm(x)
        x = self.mlp_norm(x + self.attention_dropout(self.attention(x, context), context))
        return x + self.mlp_dropout(self.mlp(x), context)
