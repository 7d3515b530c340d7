"""Llama: rotary positions, RMSNorm, gated SiLU, grouped queries; biases on all linear layers or on none."""

from collections.abc import Iterator
from typing import Any

from megalite.checkpoint.hf.family import Family, Settings
from megalite.checkpoint.hf.fields import HARMLESS, TRAINING_ONLY, Fields
from megalite.checkpoint.hf.rope import read_rotary, write_rotary
from megalite.checkpoint.hf.rows import Row, grouped_qkv, same, stacked


def read_config(config: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """config.json to our settings. Defaults are those of transformers, for files that leave fields out."""
    fields = Fields(config, harmless=HARMLESS)
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    groups = fields.size("num_key_value_heads", heads)
    if heads % groups:
        fields.refuse(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {groups}")
    fields.only("hidden_act", "silu", default="silu", because="megalite's gated MLP is SwiGLU")
    biases = {name: bool(fields.take(name, False)) for name in ("attention_bias", "mlp_bias")}
    if len(set(biases.values())) > 1:
        fields.refuse(f"{biases}: megalite has biases on all linear layers or, but for q, k and v, on none")
    model = {
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
        "add_bias_linear": biases["attention_bias"],
        "add_qkv_bias": False,
        "untie_embeddings_and_output_weights": not fields.take("tie_word_embeddings", False),
        "hidden_dropout": 0.0,
        "attention_dropout": float(fields.take("attention_dropout", 0.0)),
        "init_method_std": fields.take("initializer_range", 0.02),
        "vocab_size": fields.size("vocab_size"),
    }
    return model, fields.close("this Llama cannot be expressed in megalite")


def write_config(model: Settings) -> dict[str, Any]:
    """Our settings to config.json."""
    fields = Fields(model, harmless=TRAINING_ONLY)
    fields.only("normalization", "RMSNorm", default="LayerNorm", because="Llama has RMSNorm")
    fields.only("position_embedding_type", "rope", default="learned_absolute", because="Llama has rotary positions")
    fields.only("swiglu", True, default=False, because="Llama's MLP is a gated SiLU")
    fields.only("softmax_type", "vanilla", default="vanilla", because="Llama's attention has no sinks")
    fields.take("gelu", "tanh")  # read where there is no gate
    biases = fields.take("add_bias_linear", True)
    if fields.take("add_qkv_bias", False) and not biases:
        fields.refuse("add_qkv_bias is True: Llama has biases on all linear layers or on none")
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    if hidden % heads:
        fields.refuse(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, which Llama demands")
    grouped, groups = fields.take("group_query_attention", False), fields.take("num_query_groups", 1)
    config = {
        "vocab_size": fields.size("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.size("ffn_hidden_size"),
        "num_hidden_layers": fields.size("num_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": groups if grouped else heads,
        "head_dim": fields.size("kv_channels"),
        "hidden_act": "silu",
        "max_position_embeddings": fields.size("max_position_embeddings"),
        "rms_norm_eps": fields.take("norm_epsilon", 1e-5),
        **write_rotary(fields),
        "attention_bias": biases,
        "mlp_bias": biases,
        "tie_word_embeddings": not fields.take("untie_embeddings_and_output_weights", False),
        "attention_dropout": fields.take("attention_dropout", 0.0),
        "initializer_range": model.get("init_method_std", 0.02),
    }
    fields.close("this model is no Llama")
    return config


def rows(model: Settings) -> list[Row]:
    """The table of tensors."""
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
        for kind, inner in [("weight", True), *([("bias", False)] if model["add_bias_linear"] else [])]:
            width = (h,) if inner else ()
            in_projections = [f"{theirs}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            gate_and_up = [f"{theirs}.mlp.{part}_proj.{kind}" for part in ("gate", "up")]
            yield grouped_qkv(f"{ours}.attention.qkv.{kind}", in_projections, (*qkv, *width))
            out = (h, heads * hn) if inner else (h,)
            yield same(f"{ours}.attention.out.{kind}", f"{theirs}.self_attn.o_proj.{kind}", out)
            yield stacked(f"{ours}.mlp.fc1.{kind}", gate_and_up, (2, f, *width))
            yield same(f"{ours}.mlp.fc2.{kind}", f"{theirs}.mlp.down_proj.{kind}", (h, f) if inner else (h,))
    yield same("final_norm.weight", "model.norm.weight", (h,))
    if model["untie_embeddings_and_output_weights"]:
        yield same("head.weight", "lm_head.weight", (v, h))


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    read_config=read_config,
    write_config=write_config,
    rows=rows,
)
