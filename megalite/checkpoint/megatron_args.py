"""The arguments that a checkpoint of Megatron-LM was trained with, as settings of ours."""

from collections.abc import Iterator, Mapping
from typing import Any

from megalite.checkpoint.hf.family import Settings
from megalite.config.window_pattern import layer_pattern, pattern, window_size

_NEEDED = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "max_position_embeddings",
)  # fmt: skip
_ALIKE: Mapping[str, Any] = {
    "group_query_attention": False,
    "num_query_groups": 1,
    "rotary_base": 10000,
    "rotary_percent": 1.0,
    "rotary_interleaved": False,
    "rotary_seq_len_interpolation_factor": None,
    "use_rope_scaling": False,
    "rope_scaling_factor": 8.0,
    "normalization": "LayerNorm",
    "apply_layernorm_1p": False,
    "apply_residual_connection_post_layernorm": False,
    "qk_layernorm": False,
    "swiglu": False,
    "quick_geglu": False,
    "squared_relu": False,
    "add_bias_linear": True,
    "add_qkv_bias": False,
    "untie_embeddings_and_output_weights": False,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "apply_query_key_layer_scaling": False,
    "softmax_type": "vanilla",
    "init_method_std": 0.02,
}
"""Arguments of one name and meaning on both sides, and what holds where an older version did not have them."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "normalization": ("LayerNorm", "RMSNorm"),
    "softmax_type": ("vanilla", "off-by-one", "learnable"),
}
_REFUSED: Mapping[str, str] = {
    "num_experts": "megalite has no experts yet",
    "multi_latent_attention": "megalite has no latent attention",
    "mtp_num_layers": "megalite predicts one token",
    "qk_l2_norm": "queries and keys are normalised with weights or not at all",
    "experimental_attention_variant": "its attention is another function",
    "linear_attention_type": "its attention is another function",
    "attention_output_gate": "attention has no gate",
    "glu_linear_offset": "gated MLPs have no offset",
    "activation_func_clamp_value": "activations are not clamped",
    "heterogeneous_layers_config_path": "all layers are alike",
    "heterogeneous_layers_config_encoded_json": "all layers are alike",
    "is_hybrid_model": "all layers are alike",
    "hybrid_override_pattern": "all layers are alike",
    "retro_add_retriever": "nothing is retrieved",
}
"""Arguments of models that we do not have: anything but off, 0 or None."""


def read_args(args: Mapping[str, Any], *, vocab_size: int | None) -> Settings:
    """Our settings, with `vocab_size`: the one given, or that of the arguments, or the padded one if that is all.

    Raises ValueError with every argument that cannot be expressed.
    """
    problems = list(_problems(args))
    if problems:
        raise ValueError("\n".join(["this model of Megatron-LM cannot be expressed:", *(f"  {p}" for p in problems)]))
    padded = args["padded_vocab_size"]
    size = vocab_size or args.get("vocab_size") or padded
    if not 0 < size <= padded:
        raise ValueError(f"the vocabulary of {size} does not lie in the {padded} rows of the checkpoint")
    return {
        **{name: args[name] for name in _NEEDED},
        **{name: args.get(name, default) for name, default in _ALIKE.items()},
        "position_embedding_type": _positions(args),
        "norm_epsilon": _norm_epsilon(args),
        "gelu": _gelu(args),
        **_by_layer(args),
        "vocab_size": size,
    }


def _problems(args: Mapping[str, Any]) -> Iterator[str]:
    needed = (*_NEEDED, "padded_vocab_size", "tensor_model_parallel_size", "pipeline_model_parallel_size")
    for name in needed:
        if type(args.get(name)) is not int or args[name] < 1:
            yield f"{name} must be a whole number above 0, and is {args.get(name)!r}"
    if args.get("vocab_size") is not None and type(args["vocab_size"]) is not int:
        yield f"vocab_size is {args['vocab_size']!r}"
    for name, values in _CHOICES.items():
        if args.get(name, values[0]) not in values:
            yield f"{name} is {args[name]!r}: megalite has {', '.join(values)}"
    for name, default in _ALIKE.items():
        value = args.get(name, default)
        if value is not None and not isinstance(value, bool | int | float | str):
            yield f"{name} is no number, no switch and no word"
    for name, because in _REFUSED.items():
        if args.get(name) not in (None, False, 0, 0.0, "", ()):
            yield f"{name} is {args[name]!r}: {because}"
    if _positions(args) not in ("learned_absolute", "rope", "none"):
        yield f"position_embedding_type is {_positions(args)!r}: megalite has learned_absolute, rope and none"
    if type(_norm_epsilon(args)) is not float:
        yield f"norm_epsilon is {_norm_epsilon(args)!r}"
    if args.get("expert_model_parallel_size", 1) != 1:
        yield "expert_model_parallel_size is not 1: megalite has no experts yet"
    if type(args.get("num_layers")) is int:
        stated, layers = _by_layer(args), args["num_layers"]
        try:
            window_size(stated.get("window_size"))
            pattern(stated.get("window_attn_skip_freq"), layers)
            layer_pattern(stated.get("no_rope_freq", "1"), layers, flag="--no-rope-freq", nth=True)
        except ValueError as error:
            yield str(error)


def _positions(args: Mapping[str, Any]) -> Any:
    kind = args.get("position_embedding_type", "learned_absolute")
    return "rope" if args.get("use_rotary_position_embeddings") and kind == "learned_absolute" else kind


def _norm_epsilon(args: Mapping[str, Any]) -> Any:
    """Two names of one number, by age."""
    return args.get("norm_epsilon", args.get("layernorm_epsilon", 1e-5))


def _gelu(args: Mapping[str, Any]) -> str:
    """The fused GELU is the tanh approximation, and so is the one of OpenAI; the other one is exact."""
    fused = args.get("bias_gelu_fusion", True) and args.get("add_bias_linear", True)
    return "tanh" if fused or args.get("openai_gelu", False) else "exact"


def _by_layer(args: Mapping[str, Any]) -> Settings:
    """What not all layers do, as our flags say it: a pair and lists of numbers become their text."""
    stated = {name: args.get(name) for name in ("window_size", "window_attn_skip_freq", "no_rope_freq")}
    if isinstance(stated["window_size"], list | tuple):
        stated["window_size"] = ",".join(map(str, stated["window_size"]))
    return {name: str(value).replace(" ", "") for name, value in stated.items() if value is not None}
