"""The model that a checkpoint describes, and whether another one means the same."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from megalite.config.model import Model
from megalite.config.size import model_size

MAY_CHANGE = {
    *("seq_length", "make_vocab_size_divisible_by", "hidden_dropout", "attention_dropout", "fp32_residual_connection"),
    *("init_method_std", "embedding_init_method_std", "init_method_xavier_uniform", "apply_query_key_layer_scaling"),
    # What these say, the model's size says too, in one way instead of several.
    *("group_query_attention", "add_bias_linear", "add_qkv_bias"),
}
"""Settings of the model that may differ between a checkpoint and the run that loads it: its weights mean the same."""


def stored_model(facts: Mapping[str, Any]) -> Model:
    """The settings of a model that are kept under the names of the fields."""
    known = {member.name: facts[member.name] for member in fields(Model) if member.name in facts}
    return Model(**{"seq_length": facts["max_position_embeddings"], **known})


def model_differences(here: Model, there: Model, *, vocab_sizes: tuple[int, int]) -> dict[str, tuple[Any, Any]]:
    """What makes the weights of one model mean another thing in the other: each setting or size, here and there.

    Weights with another rotary base, say, fit every shape and mean nothing.
    """
    ours, theirs = (_function(model, size) for model, size in zip((here, there), vocab_sizes, strict=True))
    return {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs.get(name)}


def _function(model: Model, vocab_size: int) -> dict[str, Any]:
    """What weights mean: the settings that may not change from one run to the next."""
    resolved = {**asdict(model), **asdict(model_size(model, vocab_size=vocab_size))}
    free = (
        MAY_CHANGE if model.position_embedding_type == "learned_absolute" else {*MAY_CHANGE, "max_position_embeddings"}
    )
    return {name: value for name, value in resolved.items() if name not in free}
