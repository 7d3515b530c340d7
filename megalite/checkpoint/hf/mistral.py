"""Mistral: a Llama without biases whose layers see a window, all of them or none."""

from typing import Any

from megalite.checkpoint.hf.decoder import decoder_rows, read_decoder, write_decoder
from megalite.checkpoint.hf.family import Family, Settings
from megalite.checkpoint.hf.fields import HARMLESS, TRAINING_ONLY, Fields
from megalite.checkpoint.hf.sliding import read_windows, write_windows

_ABSENT = {"num_key_value_heads": 8, "max_position_embeddings": 4096 * 32, "sliding_window": 4096}
"""What transformers takes where the file says nothing."""


def read_config(config: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """config.json to our settings."""
    fields = Fields({**_ABSENT, **config}, harmless=HARMLESS)
    model = read_decoder(fields)
    size = fields.take("sliding_window")
    model |= read_windows(size, [True] * model["num_layers"], fields)
    return model, fields.close("this Mistral cannot be expressed")


def write_config(model: Settings) -> dict[str, Any]:
    """Our settings to config.json."""
    fields = Fields(model, harmless=TRAINING_ONLY)
    config = write_decoder(fields, "Mistral")
    size, windowed = write_windows(fields, config["num_hidden_layers"])
    if size is not None and not all(windowed):
        fields.refuse(f"window_attn_skip_freq makes the layers {windowed}: Mistral has a window on all or on none")
    for name in ("add_bias_linear", "add_qkv_bias"):
        fields.only(name, False, default=name == "add_bias_linear", because="Mistral has no biases")
    fields.close("this model is no Mistral")
    return {**config, "sliding_window": size}


MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    base="model.",
    read_config=read_config,
    write_config=write_config,
    rows=decoder_rows,
)
