"""Llama: every layer sees everything; biases on all linear layers or on none."""

from typing import Any

from megalite.checkpoint.hf.decoder import decoder_rows, read_decoder, write_decoder
from megalite.checkpoint.hf.family import Family, Settings
from megalite.checkpoint.hf.fields import HARMLESS, TRAINING_ONLY, Fields


def read_config(config: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """config.json to our settings. Defaults are those of transformers, for files that leave fields out."""
    fields = Fields(config, harmless=HARMLESS)
    model = read_decoder(fields)
    biases = {name: bool(fields.take(name, False)) for name in ("attention_bias", "mlp_bias")}
    if len(set(biases.values())) > 1:
        fields.refuse(f"{biases}: megalite has biases on all linear layers or, but for q, k and v, on none")
    return model | {"add_bias_linear": biases["attention_bias"]}, fields.close("this Llama cannot be expressed")


def write_config(model: Settings) -> dict[str, Any]:
    """Our settings to config.json."""
    fields = Fields(model, harmless=TRAINING_ONLY)
    config = write_decoder(fields, "Llama")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads:
        fields.refuse(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, which Llama demands")
    biases = fields.take("add_bias_linear", True)
    if fields.take("add_qkv_bias", False) and not biases:
        fields.refuse("add_qkv_bias is True: Llama has biases on all linear layers or on none")
    fields.close("this model is no Llama")
    return {**config, "attention_bias": biases, "mlp_bias": biases}


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    base="model.",
    read_config=read_config,
    write_config=write_config,
    rows=decoder_rows,
)
