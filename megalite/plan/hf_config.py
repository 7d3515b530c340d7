"""A Hugging Face config.json as the flags of the model that it describes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Facts = Mapping[str, Any]


def hf_flags(path: Path) -> list[str]:
    """The flags, from a config.json or the folder that holds it; sequences as long as the model reads, at most 8192.

    ValueError where the file cannot be read or the model is of no known family.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        kind = facts["model_type"]
        if kind not in FAMILIES:
            raise ValueError(f'"model_type" {kind!r} is not one of {", ".join(FAMILIES)}')
        return [*FAMILIES[kind](facts), "--tokenizer-type", "NullTokenizer"]
    except KeyError as error:
        raise ValueError(f"--hf-config {file} has no {error}.") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"--hf-config {file} cannot be read: {error}.") from error


def _llama(facts: Facts) -> list[str]:
    heads, longest = facts["num_attention_heads"], facts["max_position_embeddings"]
    groups = facts.get("num_key_value_heads") or heads
    flags = {
        "--num-layers": facts["num_hidden_layers"],
        "--hidden-size": facts["hidden_size"],
        "--ffn-hidden-size": facts["intermediate_size"],
        "--num-attention-heads": heads,
        "--seq-length": min(longest, 8192),
        "--max-position-embeddings": longest,
        "--vocab-size": facts["vocab_size"],
        "--position-embedding-type": "rope",
        "--normalization": "RMSNorm",
        "--hidden-dropout": 0,
        "--attention-dropout": facts.get("attention_dropout") or 0,
    }
    if facts.get("head_dim"):
        flags["--kv-channels"] = facts["head_dim"]
    switches = ["--swiglu", "--disable-bias-linear"]
    if groups < heads:
        switches += ["--group-query-attention", "--num-query-groups", str(groups)]
    if not facts.get("tie_word_embeddings", False):
        switches.append("--untie-embeddings-and-output-weights")
    return [*(text for pair in flags.items() for text in map(str, pair)), *switches]


def _gpt2(facts: Facts) -> list[str]:
    flags = {
        "--num-layers": facts["n_layer"],
        "--hidden-size": facts["n_embd"],
        "--num-attention-heads": facts["n_head"],
        "--seq-length": facts["n_positions"],
        "--max-position-embeddings": facts["n_positions"],
        "--vocab-size": facts["vocab_size"],
    }
    if facts.get("n_inner"):
        flags["--ffn-hidden-size"] = facts["n_inner"]
    return [text for pair in flags.items() for text in map(str, pair)]


FAMILIES: dict[str, Callable[[Facts], list[str]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "qwen2": lambda facts: [*_llama(facts), "--add-qkv-bias"],
    "qwen3": lambda facts: [*_llama(facts), "--qk-layernorm"],
}
"""By their model_type."""
