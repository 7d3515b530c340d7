"""Qwen 2, with biases on queries, keys and values; Qwen 3, which normalises queries and keys. Both may have windows."""

from functools import partial
from typing import Any

from megalite.checkpoint.hf.decoder import decoder_rows, read_decoder, write_decoder
from megalite.checkpoint.hf.family import Family, Settings
from megalite.checkpoint.hf.fields import HARMLESS, TRAINING_ONLY, Fields
from megalite.checkpoint.hf.sliding import read_windows, write_windows

_ABSENT = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
"""What transformers takes where the file says nothing."""
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_config(config: dict[str, Any], *, version: int) -> tuple[Settings, dict[str, Any]]:
    """config.json to our settings. Numbers of a window that is not used are carried along."""
    absent = {**_ABSENT, "head_dim": 128} if version == 3 else _ABSENT
    config = {**absent, **config}
    fields = Fields(config, harmless=HARMLESS | {"sliding_window", "max_window_layers"})
    model = read_decoder(fields)
    layers = model["num_layers"]
    used, stated = fields.take("use_sliding_window", False), fields.take("layer_types")
    size = fields.take("sliding_window") if used else None
    windowed = [size is not None and number >= (config["max_window_layers"] or 0) for number in range(layers)]
    if stated is not None:
        windowed = [kind == _SLIDING for kind in stated]
        if len(stated) != layers or not set(stated) <= {_FULL, _SLIDING} or (size is None and any(windowed)):
            fields.refuse(f"layer_types {stated} with {layers} layers and a sliding window of {size}")
            windowed = [False] * layers
    model |= read_windows(size, windowed, fields)
    if version == 3:
        fields.only("attention_bias", False, default=False, because="it is on q, k, v and o and not in the MLP")
    model |= {"qk_layernorm": True} if version == 3 else {"add_qkv_bias": True}
    return model, fields.close(f"this Qwen {version} cannot be expressed")


def write_config(model: Settings, *, version: int) -> dict[str, Any]:
    """Our settings to config.json."""
    name = f"Qwen {version}"
    fields = Fields(model, harmless=TRAINING_ONLY)
    config = write_decoder(fields, name)
    if version == 2 and config["head_dim"] * config["num_attention_heads"] == config["hidden_size"]:
        del config["head_dim"]  # no field of its own; transformers reads it where it is there
    fields.only("add_bias_linear", False, default=True, because=f"{name} has no biases but for q, k and v")
    fields.only("add_qkv_bias", version == 2, default=False, because="Qwen 2 has biases on q, k and v, Qwen 3 has none")
    fields.only("qk_layernorm", version == 3, default=False, because="Qwen 3 normalises queries and keys, Qwen 2 not")
    size, windowed = write_windows(fields, config["num_hidden_layers"])
    fields.close(f"this model is no {name}")
    if version == 3:
        config["attention_bias"] = False
    if size is None:
        return {**config, "use_sliding_window": False}
    # Older transformers know the last two only: all layers from this one on have a window.
    first = windowed.index(True) if any(windowed) else max(len(windowed), _ABSENT["max_window_layers"])
    return {
        **config,
        "use_sliding_window": True,
        "layer_types": [_SLIDING if window else _FULL for window in windowed],
        "sliding_window": size,
        "max_window_layers": first,
    }


QWEN_2, QWEN_3 = (
    Family(
        model_type=f"qwen{version}",
        architecture=f"Qwen{version}ForCausalLM",
        base="model.",
        read_config=partial(read_config, version=version),
        write_config=partial(write_config, version=version),
        rows=decoder_rows,
    )
    for version in (2, 3)
)
