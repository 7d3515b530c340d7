"""Llama to megalite and back: every bit, every number of the config, and nothing dropped in silence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from megalite.checkpoint.format import read_index
from megalite.checkpoint.hf.exporting import export_folder
from megalite.checkpoint.hf.importing import import_folder
from megalite.checkpoint.hf.llama import read_config, write_config
from megalite.checkpoint.load import read_tensor
from megalite.checkpoint.place import TRACKER, find
from tools import convert_checkpoint, inspect_checkpoint

transformers = pytest.importorskip("transformers")

TINY: dict[str, Any] = {
    "vocab_size": 71,
    "hidden_size": 48,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 3e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "bos_token_id": 0,
    "eos_token_id": 3,
}
LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one key per query": {"num_key_value_heads": 6},
    "one key for all": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 10},
    "llama 3.1": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, **LLAMA_3}},
    "interpolated": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
}


def make(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A Llama of which no tensor has its initial value, saved in a folder."""
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**TINY, **changes})).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + 0.1)
    model.save_pretrained(folder, max_shard_size="30KB")
    return transformers.AutoModelForCausalLM.from_pretrained(folder)  # as a reader sees it


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_round_trip(tmp_path: Path, changes: dict[str, Any], dtype: torch.dtype) -> None:
    model = make(tmp_path / "hf", dtype, **changes)
    import_folder(tmp_path / "hf", tmp_path / "ours")
    assert find(tmp_path / "ours").name == "release" and (tmp_path / "ours" / TRACKER).read_text() == "release"
    export_folder(find(tmp_path / "ours"), tmp_path / "back", max_file_bytes=30_000)

    before, after = weights(tmp_path / "hf"), weights(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(before[name].dtype == after[name].dtype and torch.equal(before[name], after[name]) for name in before)
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == after.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in after.values())
    assert sorted(set(index["weight_map"].values())) == sorted(
        p.name for p in (tmp_path / "back").glob("*.safetensors")
    )

    opened, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info.values())
    old, new = model.config.to_dict(), opened.config.to_dict()
    assert {key: new.get(key) for key in old if not key.startswith("_")} == {
        k: v for k, v in old.items() if k[0] != "_"
    }
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, opened(ids).logits)
    assert opened.generation_config.eos_token_id == 3 and opened.generation_config.bos_token_id == 0


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_our_tensors_by_hand(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Query head j of group i is theirs i * q + j; key and value of group i come after its queries; gate before up."""
    config = make(tmp_path / "hf", **changes).config
    folder = import_folder(tmp_path / "hf", tmp_path / "ours").directory
    theirs = weights(tmp_path / "hf")
    heads, groups, hn = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    per_group = heads // groups
    names = {"embedding.word.weight", "final_norm.weight"}
    for n in range(config.num_hidden_layers):
        for kind in ("weight", "bias") if config.attention_bias else ("weight",):
            q, k, v, o = (theirs[f"model.layers.{n}.self_attn.{part}_proj.{kind}"] for part in "qkvo")
            qkv = read_tensor(folder, f"layers.{n}.attention.qkv.{kind}")
            assert qkv.shape[:3] == (groups, per_group + 2, hn)
            for group in range(groups):
                for j in range(per_group):
                    head = group * per_group + j
                    assert torch.equal(qkv[group, j], q[head * hn : (head + 1) * hn])
                assert torch.equal(qkv[group, per_group], k[group * hn : (group + 1) * hn])
                assert torch.equal(qkv[group, per_group + 1], v[group * hn : (group + 1) * hn])
            gate, up, down = (theirs[f"model.layers.{n}.mlp.{part}_proj.{kind}"] for part in ("gate", "up", "down"))
            fc1 = read_tensor(folder, f"layers.{n}.mlp.fc1.{kind}")
            assert torch.equal(fc1[0], gate) and torch.equal(fc1[1], up) and len(fc1) == 2
            assert torch.equal(read_tensor(folder, f"layers.{n}.mlp.fc2.{kind}"), down)
            assert torch.equal(read_tensor(folder, f"layers.{n}.attention.out.{kind}"), o)
            names |= {f"layers.{n}.{part}.{kind}" for part in ("attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2")}
        norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
        for ours, their in norms.items():
            stored = read_tensor(folder, f"layers.{n}.{ours}.weight")
            assert torch.equal(stored, theirs[f"model.layers.{n}.{their}.weight"])
            names.add(f"layers.{n}.{ours}.weight")
    assert torch.equal(read_tensor(folder, "embedding.word.weight"), theirs["model.embed_tokens.weight"])
    assert torch.equal(read_tensor(folder, "final_norm.weight"), theirs["model.norm.weight"])
    if not config.tie_word_embeddings:
        assert torch.equal(read_tensor(folder, "head.weight"), theirs["lm_head.weight"])
        names.add("head.weight")
    assert read_index(folder).tensors.keys() == names


def test_settings(tmp_path: Path) -> None:
    make(tmp_path / "hf")
    scalars = read_index(import_folder(tmp_path / "hf", tmp_path / "ours").directory).scalars
    assert (scalars["iteration"], scalars["vocab_size"]) == (0, 71)
    assert "optimizer_step" not in scalars  # so that training starts an optimizer of its own
    assert scalars["model"] == {
        "num_layers": 2,
        "hidden_size": 48,
        "ffn_hidden_size": 44,
        "num_attention_heads": 6,
        "group_query_attention": True,
        "num_query_groups": 2,
        "kv_channels": 8,
        "max_position_embeddings": 64,
        "position_embedding_type": "rope",
        "rotary_base": 500000,
        "normalization": "RMSNorm",
        "norm_epsilon": 3e-6,
        "swiglu": True,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "untie_embeddings_and_output_weights": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "init_method_std": 0.02,
    }


FLAT: dict[str, Any] = {name: value for name, value in TINY.items() if name != "rope_parameters"}
ROPE = [
    # what config.json says, the base or why it is refused
    ({}, 10000),
    ({"rope_theta": 250000}, 250000),
    ({"rope_theta": 250000.0, "rope_scaling": None}, 250000),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1000000),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1.0}}, 1000000),
    ({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1000000),
    ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "stated twice"),
    ({"rope_theta": 10000.5}, "--rotary-base is a whole number"),
    ({"rope_scaling": {"type": "linear", "factor": 2.5}}, "rope_scaling asks for 'linear' scaling"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling asks for 'llama3' scaling"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope_parameters asks for 'yarn'"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "factor": 4.0}}, "rope_parameters has .'factor'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "'partial_rotary_factor': 0.5"),
]


@pytest.mark.parametrize(("said", "expected"), ROPE)
def test_rotary_base_in_every_spelling(said: dict[str, Any], expected: int | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            read_config({**FLAT, **said})
        return
    model, _ = read_config({**FLAT, **said})
    assert model["rotary_base"] == expected
    config = transformers.LlamaConfig(**write_config(model))
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": float(expected)}


def test_every_reason_against_an_import_is_given() -> None:
    config = {
        **FLAT,
        "hidden_act": "gelu",
        "attention_bias": True,
        "num_key_value_heads": 4,
        "sliding_window": 8,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "quantization_config": {"bits": 4},
        "use_cache": False,
        "_name_or_path": "x",
    }
    del config["intermediate_size"]
    with pytest.raises(ValueError) as error:
        read_config(config)
    named = (
        "hidden_act",
        "mlp_bias",
        "num_key_value_heads 4",
        "sliding_window",
        "dynamic",
        "quantization",
        "intermediate",
    )
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == len(named) and all(any(name in line for line in lines) for name in named), lines


def test_every_reason_against_an_export_is_given() -> None:
    model, _ = read_config(TINY)
    model |= {
        "normalization": "LayerNorm",
        "position_embedding_type": "learned_absolute",
        "swiglu": False,
        "add_qkv_bias": True,
        "qk_layernorm": True,
        "seq_length": 64,
        "hidden_dropout": 0.1,
        "some_flag_that_is_off": False,
    }
    with pytest.raises(ValueError) as error:
        write_config(model)
    lines = str(error.value).splitlines()[1:]
    named = ("normalization", "position_embedding_type", "swiglu", "add_qkv_bias", "qk_layernorm")
    assert len(lines) == len(named) and all(any(name in line for line in lines) for name in named), lines


def test_tensors_that_do_not_fit_are_named_at_once(tmp_path: Path) -> None:
    make(tmp_path / "hf")
    held = weights(tmp_path / "hf")
    for file in tmp_path.glob("hf/model*"):
        file.unlink()
    del held["model.norm.weight"]
    held["model.layers.0.mlp.up_proj.weight"] = torch.zeros(43, 48)
    held["model.layers.2.input_layernorm.weight"] = torch.zeros(48)
    save_file(held, tmp_path / "hf" / "model.safetensors")
    with pytest.raises(ValueError) as error:
        import_folder(tmp_path / "hf", tmp_path / "ours")
    assert sorted(str(error.value).splitlines()[1:]) == [
        "  missing: model.norm.weight",
        "  unexpected: model.layers.2.input_layernorm.weight",
        "  wrong shape: model.layers.0.mlp.up_proj.weight is (43, 48) there, and (44, 48) is asked for",
    ]
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("equal", [True, False])
def test_a_tied_head_that_was_saved_too(tmp_path: Path, equal: bool) -> None:
    make(tmp_path / "hf", tie_word_embeddings=True)
    held = weights(tmp_path / "hf")
    for file in tmp_path.glob("hf/model*"):
        file.unlink()
    held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
    held["lm_head.weight"][0, 0] += 0 if equal else 1
    save_file(held, tmp_path / "hf" / "model.safetensors")
    if equal:
        import_folder(tmp_path / "hf", tmp_path / "ours")
    else:
        with pytest.raises(ValueError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
            import_folder(tmp_path / "hf", tmp_path / "ours")


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no config.json"):
        import_folder(tmp_path, tmp_path / "ours")
    (tmp_path / "config.json").write_text(json.dumps({**FLAT, "model_type": "llama"}))
    with pytest.raises(ValueError, match=r"holds none of model.safetensors, .* and pytorch_model.bin.index.json"):
        import_folder(tmp_path, tmp_path / "ours")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a.safetensors"}}')
    with pytest.raises(ValueError, match="outside its folder"):
        import_folder(tmp_path, tmp_path / "ours")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "a.safetensors"}}')
    (tmp_path / "a.safetensors").write_bytes((1 << 50).to_bytes(8, "little"))
    with pytest.raises(ValueError, match=r"a.safetensors cannot be read as safetensors"):
        import_folder(tmp_path, tmp_path / "ours")
    (tmp_path / "model.safetensors.index.json").unlink()
    save_file({}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="model_type is 'bert'; megalite converts gpt2, llama"):
        import_folder(tmp_path, tmp_path / "ours")


def test_an_export_replaces_an_export_and_nothing_else(tmp_path: Path) -> None:
    make(tmp_path / "hf")
    checkpoint = import_folder(tmp_path / "hf", tmp_path / "ours").directory
    assert len(export_folder(checkpoint, tmp_path / "back", max_file_bytes=20_000).files) > 4
    exported = export_folder(checkpoint, tmp_path / "back", dtype=torch.bfloat16)
    assert exported.files == ("config.json", "generation_config.json", "model.safetensors")
    assert all(t.dtype == torch.bfloat16 for t in weights(tmp_path / "back").values())
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "bfloat16"
    (tmp_path / "back" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"holds other things than an earlier export: thesis.tex"):
        export_folder(checkpoint, tmp_path / "back")
    (tmp_path / "ours" / TRACKER).write_text("100")
    with pytest.raises(ValueError, match="holds the checkpoints of a training"):
        import_folder(tmp_path / "hf", tmp_path / "ours")


def test_an_export_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "hf")
    checkpoint = import_folder(tmp_path / "hf", tmp_path / "ours").directory

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        export_folder(checkpoint, tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "ours"]


def test_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "hf")
    at = {name: str(tmp_path / name) for name in ("hf", "ours", "back")}
    assert convert_checkpoint.main(["--from", "hf", "--to", "megalite", "--load", at["hf"], "--save", at["ours"]]) == 0
    said = capsys.readouterr().out
    for flag in ("--num-layers 2", "--rotary-base 500000", "--disable-bias-linear", "--num-query-groups 2", "--swiglu"):
        assert flag in said
    assert "--add-qkv-bias" not in said and "--kv-channels 8" in said and "--vocab-size 71" in said
    assert (tmp_path / "ours" / "release" / "config.toml").is_file()
    assert inspect_checkpoint.main([at["ours"], "--boxes", "--verify-integrity"]) == 0
    said = capsys.readouterr().out
    assert (
        "layers.1.attention.qkv.weight" in said and "[2, 5, 8, 48]" in said and "files are as they were saved" in said
    )
    assert (
        convert_checkpoint.main(["--from", "megalite", "--to", "hf", "--load", at["ours"], "--save", at["back"]]) == 0
    )
    assert "LlamaForCausalLM" in capsys.readouterr().out
    assert convert_checkpoint.main(["--from", "megalite", "--to", "hf", "--load", at["hf"], "--save", at["back"]]) == 1
    assert "there is no checkpoint in" in capsys.readouterr().err
    (tmp_path / "ours" / "release" / "config.toml").write_text("edited")
    assert inspect_checkpoint.main([at["ours"], "--verify-integrity"]) == 1
    assert "damaged file: config.toml" in capsys.readouterr().out
