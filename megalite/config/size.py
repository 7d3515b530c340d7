"""The model in plain numbers, nothing left to defaults: what the closed forms read and the model is built from."""

from dataclasses import dataclass

from megalite.config.model import Model


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
    rotary_dim: int
    """Channels of each head that rotary embeddings turn; 0 without them."""
    gated_mlp: bool
    learned_positions: bool
    linear_bias: bool
    qkv_bias: bool
    norm_bias: bool
    qk_norm: bool
    learned_sinks: bool
    """Each head has a learned score for attending to nothing."""
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


def model_size(model: Model, *, vocab_size: int) -> ModelSize:
    """Work out every derived number of a valid model; the vocabulary is known once the tokenizer is."""
    return ModelSize(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=ffn_hidden_size(model),
        num_attention_heads=model.num_attention_heads,
        num_query_groups=query_groups(model),
        kv_channels=kv_channels(model),
        seq_length=model.seq_length,
        max_position_embeddings=model.max_position_embeddings or model.seq_length,
        vocab_size=vocab_size,
        rotary_dim=rotary_dim(model),
        gated_mlp=model.swiglu or model.quick_geglu,
        learned_positions=model.position_embedding_type == "learned_absolute",
        linear_bias=model.add_bias_linear,
        qkv_bias=model.add_qkv_bias or model.add_bias_linear,
        norm_bias=model.normalization == "LayerNorm",
        qk_norm=model.qk_layernorm,
        learned_sinks=model.softmax_type == "learnable",
        tied_embeddings=not model.untie_embeddings_and_output_weights,
    )


def ffn_hidden_size(model: Model) -> int:
    """Width inside the MLP; the gated one has three matrices instead of two, hence 8/3 instead of 4."""
    if model.ffn_hidden_size:
        return model.ffn_hidden_size
    return 8 * model.hidden_size // 3 // 64 * 64 if model.swiglu else 4 * model.hidden_size


def kv_channels(model: Model) -> int:
    """Width of one head."""
    return model.kv_channels or model.hidden_size // model.num_attention_heads


def rotary_dim(model: Model) -> int:
    """Channels of each head that rotary embeddings turn."""
    return int(kv_channels(model) * model.rotary_percent) if model.position_embedding_type == "rope" else 0


def query_groups(model: Model) -> int:
    """Number of key and value heads."""
    return model.num_query_groups if model.group_query_attention else model.num_attention_heads
