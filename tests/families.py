"""Tiny models of transformers, one for each thing in which the families of Hugging Face differ."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

VOCAB, POSITIONS = 71, 32
_IDS = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 3}
_DECODER = {
    **_IDS,
    "hidden_size": 48,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 3e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {**_IDS, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": POSITIONS, "layer_norm_epsilon": 3e-6},
    "llama": _DECODER,
    "mistral": {**_DECODER, "sliding_window": None},
    "qwen2": _DECODER,
    "qwen3": {**_DECODER, "head_dim": 10},
}
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2, exact GELU": ("gpt2", {"activation_function": "gelu"}),
    "gpt2, untied and narrow": ("gpt2", {"tie_word_embeddings": False, "n_inner": 36}),
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3.1": ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, **_LLAMA_3}}),
    "llama, interpolated": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("mistral", {}),
    "mistral, window": ("mistral", {"sliding_window": 5}),
    "mistral, heads of their own width": ("mistral", {"head_dim": 14, "hidden_size": 52}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied, one key for all": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2, upper windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
    "qwen2, window beyond all layers": ("qwen2", {"use_sliding_window": True, "sliding_window": 4}),
    "qwen2, chosen windows": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 0,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3": ("qwen3", {}),
    "qwen3, windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}),
}


def make(name: str, folder: Path, *, dtype: torch.dtype = torch.float32, **saving: Any) -> Any:
    """The model of that name, no tensor of it as it began, saved in a folder and read back."""
    model_type, changes = MODELS[name]
    config = transformers.AutoConfig.for_model(model_type, **{**_SIZES[model_type], **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(drawn + ("norm" in key or "ln_" in key))
    model.save_pretrained(folder, **saving)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
