"""GPT-2: learned positions, LayerNorm, GELU, biases everywhere; its matrices are stored as inputs x outputs."""

from collections.abc import Iterator
from typing import Any

from megalite.checkpoint.hf.family import Family, Settings
from megalite.checkpoint.hf.fields import HARMLESS, TRAINING_ONLY, Fields
from megalite.checkpoint.hf.rows import Row, flat, fused_qkv, same, transposed

_GELU = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "exact"}
_HARMLESS = HARMLESS | {
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    "reorder_and_upcast_attn",
}  # fmt: skip
"""The last computes the same in another order."""


def read_config(config: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """config.json to our settings. Defaults are those of transformers."""
    fields = Fields(config, harmless=_HARMLESS)
    heads, hidden, positions = fields.size("n_head"), fields.size("n_embd"), fields.size("n_positions", 1024)
    if hidden % heads:
        fields.refuse(f"n_embd {hidden} is not a multiple of n_head {heads}")
    activation = fields.take("activation_function", "gelu_new")
    if activation not in _GELU:
        fields.refuse(f"activation_function is {activation!r}: megalite has {', '.join(_GELU)}")
    fields.only("n_ctx", positions, default=positions, because="it repeats n_positions")
    fields.only("scale_attn_weights", True, default=True, because="attention scores are always scaled")
    drops = {name: float(fields.take(name, 0.1)) for name in ("embd_pdrop", "resid_pdrop")}
    if len(set(drops.values())) > 1:
        fields.refuse(f"{drops}: megalite has one --hidden-dropout for both")
    model = {
        "num_layers": fields.size("n_layer"),
        "hidden_size": hidden,
        "ffn_hidden_size": fields.size("n_inner", 4 * hidden),
        "num_attention_heads": heads,
        "group_query_attention": False,
        "num_query_groups": 1,
        "kv_channels": max(hidden // heads, 1),
        "max_position_embeddings": positions,
        "position_embedding_type": "learned_absolute",
        "normalization": "LayerNorm",
        "norm_epsilon": fields.take("layer_norm_epsilon", 1e-5),
        "swiglu": False,
        "gelu": _GELU.get(activation, "tanh"),
        "add_bias_linear": True,
        "add_qkv_bias": False,
        "untie_embeddings_and_output_weights": not fields.take("tie_word_embeddings", True),
        "hidden_dropout": drops["resid_pdrop"],
        "attention_dropout": float(fields.take("attn_pdrop", 0.1)),
        "init_method_std": fields.take("initializer_range", 0.02),
        "vocab_size": fields.size("vocab_size"),
    }
    return model, fields.close("this GPT-2 cannot be expressed")


def write_config(model: Settings) -> dict[str, Any]:
    """Our settings to config.json."""
    fields = Fields(model, harmless=TRAINING_ONLY)
    fields.only("normalization", "LayerNorm", default="LayerNorm", because="GPT-2 has LayerNorm")
    fields.only(
        "position_embedding_type", "learned_absolute", default="learned_absolute", because="GPT-2 learns positions"
    )
    fields.only("softmax_type", "vanilla", default="vanilla", because="GPT-2's attention has no sinks")
    fields.only("add_bias_linear", True, default=True, because="GPT-2 has biases")
    fields.take("add_qkv_bias")  # among the biases above
    for name in ("rotary_base", "rotary_percent", "rope_scaling_factor"):
        fields.take(name)  # read where positions are rotary
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    groups = fields.take("num_query_groups", 1)
    if fields.take("group_query_attention", False) and groups != heads:
        fields.refuse(f"num_query_groups is {groups}: GPT-2 has a key and a value for each of its {heads} queries")
    if fields.size("kv_channels") * heads != hidden:
        fields.refuse(f"kv_channels x num_attention_heads is not hidden_size {hidden}, which GPT-2 demands")
    dropout = fields.take("hidden_dropout", 0.1)
    width = fields.size("ffn_hidden_size")
    config = {
        "vocab_size": fields.size("vocab_size"),
        "n_positions": fields.size("max_position_embeddings"),
        "n_embd": hidden,
        "n_layer": fields.size("num_layers"),
        "n_head": heads,
        "n_inner": None if width == 4 * hidden else width,
        "activation_function": "gelu" if fields.take("gelu", "tanh") == "exact" else "gelu_new",
        "layer_norm_epsilon": fields.take("norm_epsilon", 1e-5),
        "embd_pdrop": dropout,
        "resid_pdrop": dropout,
        "attn_pdrop": fields.take("attention_dropout", 0.1),
        "initializer_range": fields.take("init_method_std", 0.02),
        "tie_word_embeddings": not fields.take("untie_embeddings_and_output_weights", False),
    }
    fields.close("this model is no GPT-2")
    return config


def rows(model: Settings) -> list[Row]:
    """The table of tensors."""
    return list(_rows(model))


def _rows(model: Settings) -> Iterator[Row]:
    h, f, v = (model[name] for name in ("hidden_size", "ffn_hidden_size", "vocab_size"))
    qkv = (model["num_attention_heads"], 3, model["kv_channels"])
    yield same("embedding.word.weight", "transformer.wte.weight", (v, h))
    yield same("embedding.position.weight", "transformer.wpe.weight", (model["max_position_embeddings"], h))
    for n in range(model["num_layers"]):
        ours, theirs = f"layers.{n}", f"transformer.h.{n}"
        for norm, their_norm in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2")):
            for kind in ("weight", "bias"):
                yield same(f"{ours}.{norm}.{kind}", f"{theirs}.{their_norm}.{kind}", (h,))
        yield fused_qkv(f"{ours}.attention.qkv.weight", f"{theirs}.attn.c_attn.weight", (*qkv, h))
        yield fused_qkv(f"{ours}.attention.qkv.bias", f"{theirs}.attn.c_attn.bias", qkv)
        yield transposed(f"{ours}.attention.out.weight", f"{theirs}.attn.c_proj.weight", (h, h))
        yield flat(f"{ours}.attention.out.bias", f"{theirs}.attn.c_proj.bias", (h,))
        yield transposed(f"{ours}.mlp.fc1.weight", f"{theirs}.mlp.c_fc.weight", (1, f, h))
        yield flat(f"{ours}.mlp.fc1.bias", f"{theirs}.mlp.c_fc.bias", (1, f))
        yield transposed(f"{ours}.mlp.fc2.weight", f"{theirs}.mlp.c_proj.weight", (h, f))
        yield flat(f"{ours}.mlp.fc2.bias", f"{theirs}.mlp.c_proj.bias", (h,))
    for kind in ("weight", "bias"):
        yield same(f"final_norm.{kind}", f"transformer.ln_f.{kind}", (h,))
    if model["untie_embeddings_and_output_weights"]:
        yield same("head.weight", "lm_head.weight", (v, h))


GPT_2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    base="transformer.",
    read_config=read_config,
    write_config=write_config,
    rows=rows,
)
