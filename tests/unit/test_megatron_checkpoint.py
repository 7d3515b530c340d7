"""Checkpoints of Megatron-LM, written here by hand in its legacy format, are read bit for bit in every layout."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from megalite.checkpoint.format import read_index
from megalite.checkpoint.load import read_tensor
from megalite.checkpoint.megatron import find_megatron, import_megatron
from tests.megatron_files import ENUMS, GPT, LAYOUTS, LLAMA, MODELS, OTHER, PADDED, VOCAB, megatron_there, write
from tools import convert_checkpoint


def imported(root: Path, target: Path, **how: Any) -> Any:
    assert ENUMS not in sys.modules
    return import_megatron(find_megatron(root), target, **how)


PAIRS = [
    *((model, layout, False) for model in MODELS for layout in ("one rank", "tp2, uneven pp3")),
    *(("llama", layout, True) for layout in LAYOUTS),
    *(("gpt", layout, False) for layout in LAYOUTS),
    ("layer norms of queries", "tp2, pp2, uneven chunks", True),
]


@pytest.mark.parametrize(("model", "layout", "te"), PAIRS)
def test_every_tensor_is_read(tmp_path: Path, model: str, layout: str, te: bool) -> None:
    ours = write(tmp_path / "theirs", MODELS[model], layout, te=te)
    found = imported(tmp_path / "theirs", tmp_path / "ours")
    assert found.tensors == len(ours)
    for name, tensor in ours.items():
        assert torch.equal(read_tensor(found.directory, name), tensor), name


def test_settings(tmp_path: Path) -> None:
    write(tmp_path / "theirs", OTHER, "tp2")
    scalars = read_index(imported(tmp_path / "theirs", tmp_path / "ours").directory).scalars
    assert scalars["megatron"] == {"iteration": 7, "consumed_train_samples": 70}
    assert (scalars["vocab_size"], scalars["iteration"]) == (VOCAB, 0)
    stated = {**OTHER, "window_size": "7,0", "gelu": "exact"}
    for name in ("padded_vocab_size", "vocab_size", "bias_gelu_fusion"):
        del stated[name]
    assert stated.items() <= scalars["model"].items()


ARGS = [
    ({}, {}, "gelu", "tanh"),
    ({"bias_gelu_fusion": False}, {}, "gelu", "exact"),
    ({"bias_gelu_fusion": False, "openai_gelu": True}, {}, "gelu", "tanh"),
    ({"vocab_size": None}, {}, "vocab_size", PADDED),
    ({"vocab_size": None}, {"vocab_size": 41}, "vocab_size", 41),
    ({"norm_epsilon": ..., "layernorm_epsilon": 1e-6}, {}, "norm_epsilon", 1e-6),
    ({"window_size": [3, 0], "window_attn_skip_freq": 2}, {}, "window_attn_skip_freq", "2"),
    ({"rotary_base": ...}, {}, "rotary_base", 10000),
    ({"no_rope_freq": [0, 0, 1] * 2}, {}, "no_rope_freq", "[0,0,1,0,0,1]"),
    ({"num_experts": None, "mtp_num_layers": 0, "qk_l2_norm": False}, {}, "qk_layernorm", False),
]


@pytest.mark.parametrize(("changes", "how", "setting", "value"), ARGS)
def test_what_arguments_mean(
    tmp_path: Path, changes: dict[str, Any], how: dict[str, Any], setting: str, value: Any
) -> None:
    args = {name: value for name, value in (GPT | changes).items() if value is not ...}
    write(tmp_path / "theirs", args, "one rank")
    assert imported(tmp_path / "theirs", tmp_path / "ours", **how).model[setting] == value


REFUSED = [
    ({"num_experts": 8}, "num_experts is 8: megalite has no experts"),
    ({"multi_latent_attention": True}, "multi_latent_attention is True"),
    ({"position_embedding_type": "yarn"}, "position_embedding_type is 'yarn'"),
    ({"no_rope_freq": [0, 1]}, r"--no-rope-freq \[0,1\] is neither"),
    ({"window_size": (7, 3)}, "--window-size 7,3"),
    ({"ffn_hidden_size": None}, "ffn_hidden_size must be a whole number above 0, and is None"),
    ({"vocab_size": "45"}, "vocab_size is '45'"),
    ({"normalization": "L2Norm"}, "normalization is 'L2Norm': megalite has LayerNorm, RMSNorm"),
    ({"swiglu": [1]}, "swiglu is no number, no switch and no word"),
    ({"vocab_size": 49}, "vocabulary of 49 does not lie in the 48 rows"),
    ({"num_layers": 5}, "hold 6 layers, and num_layers is 5"),
    ({"num_query_groups": 3, "group_query_attention": True}, "not split evenly"),
]


@pytest.mark.parametrize(("changes", "refused"), REFUSED)
def test_arguments_that_cannot_be_expressed_are_named(tmp_path: Path, changes: dict[str, Any], refused: str) -> None:
    write(tmp_path / "theirs", GPT, "one rank", args=argparse.Namespace(
        **{**GPT, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, **changes}
    ))  # fmt: skip
    with pytest.raises(ValueError, match=refused):
        imported(tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def altered(root: Path, rank: str, change: Any) -> None:
    path = root / "iter_0000007" / rank / "model_optim_rng.pt"
    with megatron_there():
        state = torch.load(path, weights_only=False)
        change(state)
        torch.save(state, path)


SPOILED = {
    "missing": (lambda s: s["model"].pop("decoder.final_layernorm.bias"), r"missing: 0/decoder.final_layernorm.bias"),
    "unexpected": (lambda s: s["model"].update(x=torch.ones(1)), r"unexpected: 1/x"),
    "shape": (
        lambda s: s["model"].update({"decoder.layers.2.mlp.linear_fc2.weight": torch.ones(32, 9)}),
        r"wrong shape: 1/decoder.layers.2.mlp.linear_fc2.weight is \(32, 9\) there, and \(32, 10\) is asked for",
    ),
    "replica": (
        lambda s: s["model"]["decoder.layers.3.mlp.linear_fc2.bias"].add_(1),
        r"1/decoder.layers.3.mlp.linear_fc2.bias differs from 0/decoder.layers.3.mlp.linear_fc2.bias",
    ),
    "dtype": (
        lambda s: s["model"].update({k: v.bfloat16() for k, v in s["model"].items() if "fc2.weight" in k}),
        r"have different dtypes",
    ),
    "no tensor": (lambda s: s["model"].update(x=3), "x in .* is no tensor"),
    "layers": (lambda s: s["model"].update({"decoder.layers.9.x": torch.ones(1)}), "holds the layers"),
    "version": (lambda s: s.update(checkpoint_version=2.0), "checkpoint_version 2.0"),
    "no model": (lambda s: s.pop("model"), "holds no `model`"),
    "older": (lambda s: s.update(model={"language_model": {}}), "before Megatron Core"),
    "no arguments": (lambda s: s.update(args={"num_layers": 6}), "no arguments of Megatron-LM"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_ranks_that_do_not_fit_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "theirs", GPT, "tp2")
    change, refused = SPOILED[name]
    altered(tmp_path / "theirs", "mp_rank_00" if name == "missing" else "mp_rank_01", change)
    with pytest.raises(ValueError, match=refused):
        imported(tmp_path / "theirs", tmp_path / "ours")


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "theirs", GPT, "pp2")
    altered(tmp_path / "theirs", "mp_rank_00_001", lambda s: s["model"]["output_layer.weight"].add_(1))
    with pytest.raises(ValueError, match=r"output_layer.weight differs from 0/embedding.word_embeddings.weight"):
        imported(tmp_path / "theirs", tmp_path / "ours")


def test_folders(tmp_path: Path) -> None:
    root = tmp_path / "theirs"
    with pytest.raises(ValueError, match=r"holds neither latest_checkpointed_iteration.txt nor mp_rank_"):
        find_megatron(root)
    write(root, GPT, "tp2")
    folder = root / "iter_0000007"
    assert find_megatron(root) == find_megatron(root, 7) == find_megatron(folder) == folder
    with pytest.raises(ValueError, match="iter_0000008 holds no mp_rank_"):
        find_megatron(root, 8)
    (folder / "mp_rank_01" / "model_optim_rng.pt").unlink()
    with pytest.raises(ValueError, match=r"saved by 2 x 1 ranks, and lacks the files of mp_rank_01"):
        imported(root, tmp_path / "ours")
    (root / "latest_checkpointed_iteration.txt").write_text("release")
    folder.rename(root / "release")
    assert find_megatron(root) == root / "release"
    (root / "release" / "metadata.json").write_text("{}")
    with pytest.raises(ValueError, match="--ckpt-convert-format torch"):
        find_megatron(root)


class Program:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("touched",))


@pytest.mark.parametrize("place", ["args", "rng_state", "model"])
def test_a_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = {"args": argparse.Namespace(x=Program()), "rng_state": [Program()], "model": {"x": Program()}}
    write(tmp_path / "theirs", GPT, "one rank", **{place: hostile[place]})
    with pytest.raises(ValueError, match=r"names posix.mkdir, .* Nothing of it was run"):
        imported(tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "touched").exists()


def test_the_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "theirs", LLAMA | {"vocab_size": None}, "tp2")
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text("{}")
    words = f"--from megatron --to megalite --load {tmp_path / 'theirs'} --save {tmp_path / 'ours'}"
    assert convert_checkpoint.main([*words.split(), "--vocab-size", "45", "--tokenizer", str(tmp_path / "tok")]) == 0
    said = capsys.readouterr().out
    for flag in ("--use-rope-scaling", "--rope-scaling-factor 32.0", "--num-query-groups 2", "HuggingFaceTokenizer"):
        assert flag in said
    assert read_index(tmp_path / "ours" / "release").scalars["vocab_size"] == 45
    for wrong in ("--from megatron --to hf", "--from hf --to megalite --vocab-size 3", "--from hf --to hf"):
        with pytest.raises(SystemExit):
            convert_checkpoint.main([*wrong.split(), "--load", "a", "--save", "b"])
