"""The plain numbers of a model that the closed forms read."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """A GPT in numbers. Letters in formulas: L layers, h hidden, f MLP width, s sequence, V vocabulary."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    seq_length: int
    max_position_embeddings: int
    vocab_size: int
    """Without padding."""
    gated_mlp: bool
    learned_positions: bool
    linear_bias: bool
    qkv_bias: bool
    norm_bias: bool
    tied_embeddings: bool

    @property
    def query_width(self) -> int:
        """Width of all query heads."""
        return self.num_attention_heads * self.kv_channels

    @property
    def qkv_width(self) -> int:
        """Width of all queries, keys and values."""
        return self.query_width + 2 * self.num_query_groups * self.kv_channels

    @property
    def fc1_width(self) -> int:
        """Width of what the first matrix of the MLP gives: gate and up together where it is gated."""
        return self.ffn_hidden_size * (2 if self.gated_mlp else 1)
