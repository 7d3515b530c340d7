"""The settings of the network; config/schema.py says how fields are read."""

from dataclasses import dataclass
from typing import Literal

from megalite.config.field import option


@dataclass(frozen=True, kw_only=True)
class Model:
    """The network."""

    num_layers: int = option(required=True, at_least=1)
    """Number of transformer layers."""
    hidden_size: int = option(required=True, at_least=1)
    """Width of the residual stream."""
    ffn_hidden_size: int | None = option(at_least=1)
    """Width inside the MLP. Unset: 4 x hidden size; with --swiglu 8/3 x hidden size, rounded down to 64s."""
    num_attention_heads: int = option(required=True, at_least=1)
    """Number of query heads."""
    group_query_attention: bool = False
    """Let several query heads share one key and value head; without it --num-query-groups is not read."""
    num_query_groups: int = option(1, at_least=1)
    """Number of key and value heads under --group-query-attention."""
    kv_channels: int | None = option(at_least=1)
    """Width of one head. Unset: hidden size / heads."""
    seq_length: int = option(required=True, at_least=1)
    """Tokens in one training sequence."""
    max_position_embeddings: int | None = option(at_least=1)
    """Longest sequence that the model can read. Unset: the sequence length (Megatron demands it)."""
    position_embedding_type: Literal["learned_absolute", "rope", "none"] = "learned_absolute"
    """How positions enter: a learned table added to the embedding, rotary embeddings in attention, or not at all."""
    rotary_base: int = option(10000, at_least=1)
    """Base of the rotary frequencies."""
    rotary_percent: float = option(1.0, above=0, at_most=1)
    """Share of each head's channels that rotary embeddings turn; the rest has no position."""
    rotary_interleaved: bool = False
    """Turn channel 2i with channel 2i + 1, instead of channel i with the one half a head away."""
    rotary_seq_len_interpolation_factor: int | None = option(at_least=1)
    """Divide rotary positions by this, to read sequences that many times longer."""
    no_rope_freq: str | None = None
    """Layers without rotary positions: N for every N-th, or a list of 1 (without) and 0."""
    use_rope_scaling: bool = False
    """Scale the low rotary frequencies as Llama 3.1 does, which was trained on 8192 positions before."""
    rope_scaling_factor: float = option(8.0, at_least=1)
    """By how much --use-rope-scaling slows the lowest frequencies."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """The normalisation before attention, before the MLP and at the end."""
    norm_epsilon: float = option(1e-5, above=0)
    """Added to the variance in a normalisation."""
    apply_layernorm_1p: bool = False
    """Keep the weights of normalisations as their distance from 1, so that they start at 0 as Megatron's do then."""
    apply_residual_connection_post_layernorm: bool = False
    """Take the residual from behind the normalisation instead of before it."""
    fp32_residual_connection: bool = False
    """Keep the residual stream in fp32 under --bf16."""
    qk_layernorm: bool = False
    """Normalise each query and key over its head, before positions are added."""
    swiglu: bool = False
    """Use a gated SiLU in the MLP instead of GELU."""
    quick_geglu: bool = False
    """Use a gated x sigmoid(1.702 x) in the MLP instead of GELU."""
    squared_relu: bool = False
    """Use the square of ReLU in the MLP instead of GELU."""
    gelu: Literal["tanh", "exact"] = "tanh"
    """Which GELU: its tanh approximation, which Megatron's default computes, or the exact one."""
    add_bias_linear: bool = option(True, flag="--disable-bias-linear")
    """Give the linear layers biases."""
    add_qkv_bias: bool = False
    """Give the query, key and value projection a bias even where the other linear layers have none."""
    untie_embeddings_and_output_weights: bool = False
    """Give the output layer its own weight instead of the embedding's."""
    hidden_dropout: float = option(0.1, at_least=0, below=1)
    """Probability of dropping an element after the embedding, attention and MLP."""
    attention_dropout: float = option(0.1, at_least=0, below=1)
    """Probability of dropping an attention weight."""
    apply_query_key_layer_scaling: bool = False
    """Divide attention scores by the layer's number, and multiply back in fp32: the same function, less overflow."""
    window_size: str | None = None
    """`left,right`: attend to so many earlier tokens, -1 for all of them, and to none to the right: 0."""
    window_attn_skip_freq: str | None = None
    """Which layers attend to everything despite --window-size: N for every N-th, or a list of 1 (windowed) and 0."""
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"
    """Let attention attend to nothing: one more score in the softmax, 0 or learned for each head."""
    init_method_xavier_uniform: bool = False
    """Draw the initial weights uniformly within sqrt(6 / (inputs + outputs)) instead of normally."""
    init_method_std: float = option(0.02, at_least=0)
    """Standard deviation of the initial weights; attention-out and fc2 divide it by sqrt(2 x layers)."""
    embedding_init_method_std: float | None = option(at_least=0)
    """Standard deviation of the initial embeddings. Unset: --init-method-std."""
    make_vocab_size_divisible_by: int = option(128, at_least=1)
    """The vocabulary is padded to a multiple of this times the tensor parallel size."""
