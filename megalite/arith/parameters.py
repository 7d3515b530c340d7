"""How many parameters a model has, in all and on one tensor parallel rank."""

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
