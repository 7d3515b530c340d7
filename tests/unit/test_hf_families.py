"""Every family of Hugging Face, in and out: every bit, every field, and no reading of pickles by running them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from megalite.checkpoint.hf.exporting import export_folder
from megalite.checkpoint.hf.families import FAMILIES, family_for, family_of
from megalite.checkpoint.hf.importing import import_folder
from megalite.checkpoint.load import read_tensor
from tests.families import MODELS, make

transformers = pytest.importorskip("transformers")


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_round_trip(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    model = make(name, tmp_path / "hf", dtype=dtype, max_shard_size="30KB")
    checkpoint = import_folder(tmp_path / "hf", tmp_path / "ours").directory
    exported = export_folder(checkpoint, tmp_path / "back", max_file_bytes=30_000)
    assert exported.architecture == type(model).__name__

    before, after = weights(tmp_path / "hf"), weights(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(before[key].dtype == after[key].dtype and torch.equal(before[key], after[key]) for key in before)
    opened, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info.values())
    old, new = model.config.to_dict(), opened.config.to_dict()
    assert {key: new.get(key) for key in old if key[0] != "_"} == {key: old[key] for key in old if key[0] != "_"}
    assert new["architectures"] == [type(model).__name__] and new["dtype"] == str(dtype).removeprefix("torch.")
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, opened(ids).logits)


def test_every_family_is_among_the_models() -> None:
    assert {model_type for model_type, _ in MODELS.values()} == set(FAMILIES)


def test_gpt2_by_hand(tmp_path: Path) -> None:
    """Their matrix turns inputs into q, k and v side by side; ours holds each head's q, k and v together."""
    make("gpt2", tmp_path / "hf")
    ours, theirs = import_folder(tmp_path / "hf", tmp_path / "ours").directory, weights(tmp_path / "hf")
    for n in range(3):
        qkv, bias = (read_tensor(ours, f"layers.{n}.attention.qkv.{kind}") for kind in ("weight", "bias"))
        assert qkv.shape == (6, 3, 8, 48) and bias.shape == (6, 3, 8)
        fused, fused_bias = (theirs[f"transformer.h.{n}.attn.c_attn.{kind}"] for kind in ("weight", "bias"))
        for head in range(6):
            for part in range(3):
                columns = slice(part * 48 + head * 8, part * 48 + head * 8 + 8)
                assert torch.equal(qkv[head, part], fused[:, columns].t())
                assert torch.equal(bias[head, part], fused_bias[columns])
        assert torch.equal(
            read_tensor(ours, f"layers.{n}.mlp.fc1.weight")[0], theirs[f"transformer.h.{n}.mlp.c_fc.weight"].t()
        )
        assert torch.equal(
            read_tensor(ours, f"layers.{n}.mlp.fc2.weight"), theirs[f"transformer.h.{n}.mlp.c_proj.weight"].t()
        )


@pytest.mark.parametrize("name", ["gpt2", "qwen2, tied, one key for all"])
@pytest.mark.parametrize("older", [False, True], ids=["zip", "before zip"])
@pytest.mark.parametrize("parts", [1, 2])
def test_files_of_torch_save_are_read(tmp_path: Path, name: str, older: bool, parts: int) -> None:
    """pytorch_model.bin, whole or in parts, in both of torch's formats; the tied head is among them, and buffers."""
    make(name, tmp_path / "hf")
    held = weights(tmp_path / "hf")
    expected = import_folder(tmp_path / "hf", tmp_path / "expected").directory
    (tmp_path / "hf" / "model.safetensors").unlink()
    word = "transformer.wte.weight" if name == "gpt2" else "model.embed_tokens.weight"
    held |= {"lm_head.weight": held[word], "transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4).tril().bool()}
    names = [f"pytorch_model-{part}.bin" if parts > 1 else "pytorch_model.bin" for part in range(parts)]
    for part, file in enumerate(names):
        torch.save(
            dict(list(held.items())[part::parts]), tmp_path / "hf" / file, _use_new_zipfile_serialization=not older
        )
    if parts > 1:
        listed = {key: names[number % parts] for number, key in enumerate(held)}
        (tmp_path / "hf" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": listed}))
    found = import_folder(tmp_path / "hf", tmp_path / "ours").directory
    export_folder(found, tmp_path / "back")
    export_folder(expected, tmp_path / "back2")
    a, b = weights(tmp_path / "back"), weights(tmp_path / "back2")
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_folder_of_the_model_without_its_head(tmp_path: Path) -> None:
    """Its names lack the prefix, as those of the first GPT-2 do."""
    make("gpt2", tmp_path / "hf")
    before = weights(tmp_path / "hf")
    transformers.GPT2Model.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "bare")
    assert "wte.weight" in weights(tmp_path / "bare")
    export_folder(import_folder(tmp_path / "bare", tmp_path / "ours").directory, tmp_path / "back")
    after = weights(tmp_path / "back")
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


def stated(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a model, with changes; None takes a field away."""
    model_type, own = MODELS[name]
    config = transformers.AutoConfig.for_model(model_type, **own).to_dict() | changes
    return {key: value for key, value in config.items() if value is not ...}


REFUSED = [
    ("gpt2", {"activation_function": "relu"}, "activation_function is 'relu'"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
    ("gpt2", {"embd_pdrop": 0.2}, "one --hidden-dropout for both"),
    ("gpt2", {"n_head": 5}, "n_embd 768 is not a multiple of n_head 5"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention = True"),
    ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = .* has no counterpart"),
    ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
    ("mistral", {"attention_bias": True}, "attention_bias = True"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types .* with 32 layers"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 32}, "sliding window of None"),
    ("qwen2", {"use_mrope": True}, "use_mrope = True"),
    ("qwen3", {"attention_bias": True}, "attention_bias is True"),
    ("qwen3", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}, "'yarn' scaling"),
    ("qwen3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
]


@pytest.mark.parametrize(("name", "changes", "reason"), REFUSED)
def test_a_field_that_cannot_be_expressed_is_named(name: str, changes: dict[str, Any], reason: str) -> None:
    family_of(stated(name)).read_config(stated(name))
    with pytest.raises(ValueError, match=reason):
        family_of(stated(name)).read_config(stated(name, **changes))


ABSENT = [
    ("mistral", {"sliding_window": ...}, "window_size", "4095,0"),
    ("mistral", {"sliding_window": None}, "window_size", None),
    ("mistral", {"num_key_value_heads": ...}, "num_query_groups", 8),
    ("mistral", {"num_key_value_heads": None}, "group_query_attention", False),
    ("qwen2", {"max_position_embeddings": ...}, "max_position_embeddings", 32768),
    ("qwen3", {"head_dim": ...}, "kv_channels", 128),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "layer_types": ...}, "window_size", "8,0"),
    (
        *("qwen2", {"use_sliding_window": True, "sliding_window": 9, "layer_types": ...}),
        *("window_attn_skip_freq", f"[{'0,' * 28}1,1,1,1]"),
    ),
    ("gpt2", {"n_inner": None}, "ffn_hidden_size", 3072),
]


@pytest.mark.parametrize(("name", "changes", "setting", "value"), ABSENT)
def test_what_transformers_takes_where_nothing_is_said(
    name: str, changes: dict[str, Any], setting: str, value: Any
) -> None:
    config = stated(name, **changes)
    model, _ = family_of(config).read_config(config)
    assert model.get(setting) == value


def test_a_model_goes_to_the_family_that_it_came_from_or_was_asked_for() -> None:
    config = stated("mistral", sliding_window=None)
    model, _ = family_of(config).read_config(config)
    assert family_for(model, asked=None, brought=None)[0].model_type == "llama"
    assert family_for(model, asked=None, brought="mistral")[0].model_type == "mistral"
    assert family_for(model, asked="mistral", brought=None)[0].model_type == "mistral"
    with pytest.raises(ValueError, match=r"this model is no Qwen 3:\n  qk_layernorm is False"):
        family_for(model, asked="qwen3", brought=None)
    with pytest.raises(ValueError, match=r"The nearest says:\nthis model is no Qwen 3:\n  rotary_percent is 0.5.*$"):
        family_for({**model, "qk_layernorm": True, "rotary_percent": 0.5}, asked=None, brought="mistral")
