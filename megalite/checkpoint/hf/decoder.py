"""What Llama and its descendants share: rotary positions, RMSNorm, gated SiLU, grouped queries."""

from collections.abc import Iterator
from typing import Any

from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.fields import Fields
from megalite.checkpoint.hf.rope import read_rotary, write_rotary
from megalite.checkpoint.hf.rows import Row, grouped_qkv, same, stacked


def read_decoder(fields: Fields) -> Settings:
    """Our settings of what the families share; each adds its own."""
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    groups = fields.size("num_key_value_heads", heads)
    if heads % groups:
        fields.refuse(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {groups}")
    fields.only("hidden_act", "silu", default="silu", because="megalite's gated MLP is SwiGLU")
    return {
        "num_layers": fields.size("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": fields.size("intermediate_size"),
        "num_attention_heads": heads,
        "group_query_attention": groups != heads,
        "num_query_groups": groups if groups != heads else 1,
        "kv_channels": fields.size("head_dim", max(hidden // heads, 1)),
        "max_position_embeddings": fields.size("max_position_embeddings", 2048),
        "position_embedding_type": "rope",
        **read_rotary(fields),
        "normalization": "RMSNorm",
        "norm_epsilon": fields.take("rms_norm_eps", 1e-6),
        "swiglu": True,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "untie_embeddings_and_output_weights": not fields.take("tie_word_embeddings", False),
        "hidden_dropout": 0.0,
        "attention_dropout": float(fields.take("attention_dropout", 0.0)),
        "init_method_std": fields.take("initializer_range", 0.02),
        "vocab_size": fields.size("vocab_size"),
    }


def write_decoder(fields: Fields, name: str) -> dict[str, Any]:
    """The config of what the families share; what is left in `fields` is for each to read. `name` is for errors."""
    fields.only("normalization", "RMSNorm", default="LayerNorm", because=f"{name} has RMSNorm")
    fields.only("position_embedding_type", "rope", default="learned_absolute", because=f"{name} has rotary positions")
    fields.only("swiglu", True, default=False, because=f"{name}'s MLP is a gated SiLU")
    fields.only("softmax_type", "vanilla", default="vanilla", because=f"{name}'s attention has no sinks")
    fields.take("gelu", "tanh")  # read where there is no gate
    grouped, groups = fields.take("group_query_attention", False), fields.take("num_query_groups", 1)
    heads = fields.size("num_attention_heads")
    return {
        "vocab_size": fields.size("vocab_size"),
        "hidden_size": fields.size("hidden_size"),
        "intermediate_size": fields.size("ffn_hidden_size"),
        "num_hidden_layers": fields.size("num_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": groups if grouped else heads,
        "head_dim": fields.size("kv_channels"),
        "hidden_act": "silu",
        "max_position_embeddings": fields.size("max_position_embeddings"),
        "rms_norm_eps": fields.take("norm_epsilon", 1e-5),
        **write_rotary(fields),
        "tie_word_embeddings": not fields.take("untie_embeddings_and_output_weights", False),
        "attention_dropout": fields.take("attention_dropout", 0.0),
        "initializer_range": fields.take("init_method_std", 0.02),
    }


def decoder_rows(model: Settings) -> list[Row]:
    """The table of tensors: biases and the norms of queries and keys where the settings have them."""
    return list(_rows(model))


def _rows(model: Settings) -> Iterator[Row]:
    h, f, v, hn = (model[name] for name in ("hidden_size", "ffn_hidden_size", "vocab_size", "kv_channels"))
    heads = model["num_attention_heads"]
    groups = model["num_query_groups"] if model["group_query_attention"] else heads
    qkv = (groups, heads // groups + 2, hn)
    yield same("embedding.word.weight", "model.embed_tokens.weight", (v, h))
    for n in range(model["num_layers"]):
        ours, theirs = f"layers.{n}", f"model.layers.{n}"
        yield same(f"{ours}.attention_norm.weight", f"{theirs}.input_layernorm.weight", (h,))
        yield same(f"{ours}.mlp_norm.weight", f"{theirs}.post_attention_layernorm.weight", (h,))
        if model.get("qk_layernorm"):
            for part in "qk":
                yield same(f"{ours}.attention.{part}_norm.weight", f"{theirs}.self_attn.{part}_norm.weight", (hn,))
        q_k_v = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        if model["add_qkv_bias"] or model["add_bias_linear"]:
            yield grouped_qkv(f"{ours}.attention.qkv.bias", [f"{name}.bias" for name in q_k_v], qkv)
        yield grouped_qkv(f"{ours}.attention.qkv.weight", [f"{name}.weight" for name in q_k_v], (*qkv, h))
        for kind in ("weight", "bias") if model["add_bias_linear"] else ("weight",):
            width = (h,) if kind == "weight" else ()
            gate_and_up = [f"{theirs}.mlp.{part}_proj.{kind}" for part in ("gate", "up")]
            out, down = ((h, heads * hn), (h, f)) if kind == "weight" else ((h,), (h,))
            yield same(f"{ours}.attention.out.{kind}", f"{theirs}.self_attn.o_proj.{kind}", out)
            yield stacked(f"{ours}.mlp.fc1.{kind}", gate_and_up, (2, f, *width))
            yield same(f"{ours}.mlp.fc2.{kind}", f"{theirs}.mlp.down_proj.{kind}", down)
    yield same("final_norm.weight", "model.norm.weight", (h,))
    if model["untie_embeddings_and_output_weights"]:
        yield same("head.weight", "lm_head.weight", (v, h))
