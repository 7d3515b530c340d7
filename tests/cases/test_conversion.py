"""C51, C53 and C55: what a conversion may lose between Hugging Face, a run in any layout, and Hugging Face again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.cases.fixtures import BATCH, COURSE, EOD, PROBE, SIZES, WHOLE, Materials, Oracle
from tests.cases.harness import ALL, Program
from tools import convert_checkpoint

transformers = pytest.importorskip("transformers")

LENGTH = 128


def convert(source: str, target: str, load: Path, save: Path, *words: str) -> int:
    return convert_checkpoint.main(["--from", source, "--to", target, "--load", str(load), "--save", str(save), *words])


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


def samples(materials: Materials) -> list[list[int]]:
    """The first batch of LENGTH positions."""
    return materials.samples(materials.corpus(), BATCH, length=LENGTH)


def first_loss(program: Program, materials: Materials, layout: str, imported: Path | None, *words: str) -> Any:
    """A run of one iteration that learns nothing, its model described by the imported config.toml or by `words`."""
    settings = f"--config {imported}/release/config.toml --load {imported} --finetune" if imported else ""
    settings += f" {COURSE} {PROBE}"
    data = f"{materials.tokenizer()} --data-path {materials.corpus()} {WHOLE} --train-iters 1 --seq-length {LENGTH}"
    return program(layout, settings, data, *words)


BIASES: dict[str, dict[str, Any]] = {"biases": {"attention_bias": True, "mlp_bias": True}, "no biases": {}}


@pytest.fixture(scope="module")
def imported(materials: Materials) -> dict[str, tuple[Path, Path]]:
    """HF0 with biases and without: every tensor drawn, biases too; the Hugging Face folder and our checkpoint."""
    folders = {}
    for name, changes in BIASES.items():
        source, target = materials.model(**changes), materials.folder / f"c51-{name.replace(' ', '')}"
        assert convert("hf", "megalite", source, target) == 0
        folders[name] = (source, target)
    return folders


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("layout", ALL)
def test_c51_gate_up_and_biases(program, materials, imported, tmp_path: Path, layout: str, name: str) -> None:
    source, checkpoint = imported[name]
    oracle = Oracle(transformers.LlamaForCausalLM.from_pretrained(source))
    found = first_loss(program, materials, layout, checkpoint, f"--save {tmp_path}/saved --save-interval 1")
    assert found.status == 0, found.said[0]
    assert found.losses == pytest.approx([oracle.mean(samples(materials))], rel=1e-5)
    assert convert("megalite", "hf", tmp_path / "saved", tmp_path / "back") == 0
    assert same_bits(weights(source), weights(tmp_path / "back"))


def test_c51_biases_are_never_dropped(program, materials, imported, tmp_path: Path, capsys) -> None:
    checkpoint = imported["biases"][1]
    without = first_loss(program, materials, "tp2", checkpoint, "--disable-bias-linear")
    assert without.status == 1 and "linear_bias: False here, True there" in without.said[0]
    added = first_loss(program, materials, "tp2", imported["no biases"][1], "--add-bias-linear")
    assert added.status == 1 and "linear_bias: True here, False there" in added.said[0]
    assert convert("megalite", "hf", checkpoint, tmp_path / "hf", "--family", "mistral") == 1
    assert "add_bias_linear is True: Mistral has no biases" in capsys.readouterr().err
    assert not (tmp_path / "hf").exists()


LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
NUMBERS: dict[str, dict[str, Any]] = {
    "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    "llama 3": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA_3}},
    "epsilon": {"rms_norm_eps": 1e-5},
    "width": {"intermediate_size": 256},
}


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json as transformers wrote it before version 5."""
    nested = dict(config.pop("rope_parameters"))
    config |= {"rope_theta": nested.pop("rope_theta"), "torch_dtype": config.pop("dtype")}
    if nested["rope_type"] != "default":
        config["rope_scaling"] = nested
    return config


@pytest.mark.parametrize("spelling", ["flat", "nested"])
@pytest.mark.parametrize("name", NUMBERS)
def test_c53_numbers_survive(program, materials, tmp_path: Path, name: str, spelling: str) -> None:
    original = tmp_path / "hf"
    drawn = materials.model(intermediate_size=NUMBERS[name].get("intermediate_size", SIZES["intermediate_size"]))
    config = transformers.LlamaConfig(**{**SIZES, **NUMBERS[name]}, dtype="float32", architectures=["LlamaForCausalLM"])
    shutil.copytree(drawn, original)
    stated = config.to_dict()
    (original / "config.json").write_text(json.dumps(flat(stated) if spelling == "flat" else stated))
    model = transformers.AutoModelForCausalLM.from_pretrained(original)
    assert model.config.rope_parameters == config.rope_parameters  # it reads both spellings

    assert convert("hf", "megalite", original, tmp_path / "ours") == 0
    found = first_loss(program, materials, "one", tmp_path / "ours", f"--save {tmp_path}/saved --save-interval 1")
    assert found.status == 0, found.said[0]
    assert found.losses == pytest.approx([Oracle(model).mean(samples(materials))], rel=1e-4)
    known = f"--load {tmp_path}/saved --finetune --use-checkpoint-args --save {tmp_path}/again --save-interval 1"
    again = first_loss(program, materials, "one", None, known)
    assert again.status == 0 and again.losses == found.losses, again.said[0]

    assert convert("megalite", "hf", tmp_path / "again", tmp_path / "back") == 0
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    for field in ("rope_parameters", "rms_norm_eps", "intermediate_size", "max_position_embeddings"):
        assert getattr(back.config, field) == getattr(config, field)
    ids = torch.tensor(samples(materials))[:2, :LENGTH]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, back(ids).logits)
    older = json.loads((tmp_path / "back" / "config.json").read_text())
    assert older["rope_theta"] == config.rope_parameters["rope_theta"] and older["torch_dtype"] == "float32"
    assert ("rope_scaling" in older) == (config.rope_parameters["rope_type"] != "default")


def test_c53_flags_that_contradict_are_named(program, materials, imported) -> None:
    found = first_loss(program, materials, "one", imported["no biases"][1], "--rotary-base 500000")
    assert found.status == 1 and "rotary_base: 500000 here, 10000 there" in found.said[0]


@pytest.fixture(scope="module")
def trained(program: Program, materials: Materials, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five iterations from HF0, on TOK and CORPUS."""
    folder = tmp_path_factory.mktemp("c55")
    run = materials.run()
    found = program(
        "one", run, f"--data-path {materials.corpus()} {WHOLE} --train-iters 5 --save {folder}/run --save-interval 5"
    )
    assert found.status == 0
    return folder / "run"


@pytest.mark.parametrize("shards", [1, 5])
@pytest.mark.parametrize("earlier", [False, True], ids=["fresh", "over an older export"])
def test_c55_an_export_loads_by_itself(
    materials: Materials, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, earlier: bool
) -> None:
    export = tmp_path / "export"
    if earlier:
        assert convert("megalite", "hf", trained, export, "--max-file-gb", "0.00005") == 0
        assert len(list(export.glob("*.safetensors"))) > 10
    tokenizer = transformers.AutoTokenizer.from_pretrained(materials.tok(320))
    assert convert("megalite", "hf", trained, export, "--max-file-gb", "0.0003" if shards > 1 else "1") == 0
    files = sorted(path.name for path in export.glob("*.safetensors"))
    assert (len(files) >= 2) == (shards > 1)
    held = weights(export)
    if shards > 1:
        index = json.loads((export / "model.safetensors.index.json").read_text())
        assert index["weight_map"].keys() == held.keys() and sorted(set(index["weight_map"].values())) == files
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in held.values())
    else:
        assert files == ["model.safetensors"] and not (export / "model.safetensors.index.json").exists()

    moved = tmp_path / "moved"
    export.rename(moved)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = transformers.AutoConfig.from_pretrained(moved)
    opened = transformers.AutoTokenizer.from_pretrained(moved)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(moved, output_loading_info=True)
    assert not any(info.values()) and config.architectures == ["LlamaForCausalLM"]
    assert opened.encode("for x in range(3):") == tokenizer.encode("for x in range(3):")
    ids = torch.tensor([opened.encode("import os")])
    assert model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False).shape[1] == ids.shape[1] + 5
    assert opened.eos_token_id == EOD
    for stated in (config, model.generation_config):
        assert stated.eos_token_id == EOD and stated.pad_token_id == opened.pad_token_id
