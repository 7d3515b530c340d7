"""From settings to the plain numbers that the arithmetic reads."""

from megalite.arith.size import ModelSize
from megalite.config.derive import Derived
from megalite.config.schema import Config


def model_size(config: Config, derived: Derived, *, vocab_size: int) -> ModelSize:
    """The model in numbers; the vocabulary is known once the tokenizer is."""
    model = config.model
    return ModelSize(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=derived.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=derived.num_query_groups,
        kv_channels=derived.kv_channels,
        seq_length=model.seq_length,
        max_position_embeddings=derived.max_position_embeddings,
        vocab_size=vocab_size,
        gated_mlp=model.swiglu,
        learned_positions=model.position_embedding_type == "learned_absolute",
        linear_bias=model.add_bias_linear,
        qkv_bias=derived.add_qkv_bias,
        norm_bias=model.normalization == "LayerNorm",
        tied_embeddings=not model.untie_embeddings_and_output_weights,
    )
