"""Which parameters a model has, and how many, in all and on one tensor parallel rank."""

import math
from dataclasses import dataclass

from megalite.arith.part import Part, whole
from megalite.config.size import ModelSize


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters that tensor parallel ranks share out, and parameters that each of them holds whole."""

    split: int
    replicated: int

    @property
    def total(self) -> int:
        """Each logical parameter once."""
        return self.split + self.replicated

    def per_rank(self, tensor_parallel_size: int) -> int:
        """Parameters on one rank; exact where the sizes divide, which validation demands, and V is padded."""
        return -(-self.split // tensor_parallel_size) + self.replicated


def count_parameters(size: ModelSize, part: Part | None = None) -> ParameterCount:
    """The exact count, of the whole model unless a part is given; vocabulary as given.

    With biases, learned positions and tied embeddings it is 12Lh^2 (1 + 13/(12h) + (V+s)/(12Lh)) + 2h: Narayanan et
    al. 2021, equation 2, plus the final norm that it leaves out. Tied embeddings are in the part of the embedding and
    in that of the loss: parts on two ranks add up to one vocabulary more than the whole.
    """
    part = part or whole(size)
    layer_split, layer_replicated = layer_parameters(size)
    positions = size.max_position_embeddings * size.hidden_size if size.learned_positions else 0
    return ParameterCount(
        split=part.layers * layer_split + _vocabularies(size, part) * size.vocab_size * size.hidden_size,
        replicated=part.layers * layer_replicated + positions * part.embedding + _norm(size) * part.loss,
    )


def layer_parameters(size: ModelSize) -> tuple[int, int]:
    """(split, replicated) parameters of one layer."""
    h = size.hidden_size
    split_biases = size.qkv_width * size.qkv_bias + size.fc1_width * size.linear_bias
    sinks = size.num_attention_heads * size.learned_sinks
    return layer_matrices(size) + split_biases + sinks, 2 * _norm(
        size
    ) + 2 * h * size.linear_bias + head_norm_parameters(size)


def layer_matrices(size: ModelSize) -> int:
    """Parameters of one layer that are factors of a matrix product: 12 h^2 in the GPT of the papers."""
    h = size.hidden_size
    return h * (size.qkv_width + size.query_width + size.fc1_width + size.ffn_hidden_size)


def head_norm_parameters(size: ModelSize) -> int:
    """Parameters of the norms of queries and keys in one layer."""
    return 2 * size.kv_channels * (2 if size.norm_bias else 1) * size.qk_norm


def _norm(size: ModelSize) -> int:
    return size.hidden_size * (2 if size.norm_bias else 1)


def _vocabularies(size: ModelSize, part: Part) -> int:
    both = part.embedding + part.loss
    return min(both, 1) if size.tied_embeddings else both


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One tensor of parameters."""

    name: str
    """As in a checkpoint, but without the number of the layer: `layers.mlp.fc1.weight`."""
    shape: tuple[int, ...]
    """That of the whole, with the padding of the vocabulary."""
    split: bool = False
    """Tensor parallel ranks share it out."""
    by_heads: bool = False
    """Every tensor parallel rank has all of it, and sees the part of its gradient that its heads give."""

    def on_rank(self, tensor_parallel_size: int) -> int:
        """Elements on one tensor parallel rank."""
        return math.prod(self.shape) // (tensor_parallel_size if self.split else 1)


def weights(size: ModelSize, part: Part) -> list[Weight]:
    """The parameters of a part in the order of the model, with the matrix of tied embeddings at either end."""
    h, vocabulary = size.hidden_size, (size.vocab_size, size.hidden_size)
    word = Weight(name="embedding.word.weight", shape=vocabulary, split=True)
    positions = Weight(name="embedding.position.weight", shape=(size.max_position_embeddings, h))
    head = Weight(name="head.weight", shape=vocabulary, split=True)
    return [
        *[word] * (part.embedding or (part.loss and size.tied_embeddings)),
        *[positions] * (part.embedding and size.learned_positions),
        *_layer(size) * part.layers,
        *_norm_weights("final_norm", h, size) * part.loss,
        *[head] * (part.loss and not size.tied_embeddings),
    ]


def _layer(size: ModelSize) -> list[Weight]:
    h, groups = size.hidden_size, size.num_query_groups
    qkv = (groups, size.num_attention_heads // groups + 2, size.kv_channels)
    fc1 = (2 if size.gated_mlp else 1, size.ffn_hidden_size)
    sink = Weight(name="layers.attention.core.sink", shape=(size.num_attention_heads,), split=True)
    return [
        *_norm_weights("layers.attention_norm", h, size),
        *_linear("layers.attention.qkv", qkv, h, bias=size.qkv_bias),
        *_linear("layers.attention.out", (h,), size.query_width, bias=size.linear_bias, row=True),
        *[sink] * size.learned_sinks,
        *_norm_weights("layers.attention.q_norm", size.kv_channels, size, by_heads=True) * size.qk_norm,
        *_norm_weights("layers.attention.k_norm", size.kv_channels, size, by_heads=True) * size.qk_norm,
        *_norm_weights("layers.mlp_norm", h, size),
        *_linear("layers.mlp.fc1", fc1, h, bias=size.linear_bias),
        *_linear("layers.mlp.fc2", (h,), size.ffn_hidden_size, bias=size.linear_bias, row=True),
    ]


def _norm_weights(name: str, width: int, size: ModelSize, *, by_heads: bool = False) -> list[Weight]:
    return [
        Weight(name=f"{name}.{kind}", shape=(width,), by_heads=by_heads)
        for kind in ("weight", "bias")[: 1 + size.norm_bias]
    ]


def _linear(name: str, outputs: tuple[int, ...], inputs: int, *, bias: bool, row: bool = False) -> list[Weight]:
    """A row linear's bias is whole on every tensor parallel rank."""
    weight = Weight(name=f"{name}.weight", shape=(*outputs, inputs), split=True)
    return [weight, *[Weight(name=f"{name}.bias", shape=outputs, split=not row)] * bias]
