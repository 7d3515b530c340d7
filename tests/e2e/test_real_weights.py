"""Two small trained models of a public package go in, out and generate, as the package itself computes.

The package, glassllm 0.1.0 (MIT), is fetched from the registry into a cache beside the system's temporary files.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from megalite.checkpoint.hf.importing import import_folder
from megalite.grid import Grid
from tests.parallel.test_opened import opened_logits
from tests.pool import Pool
from tools import convert_checkpoint

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(tempfile.gettempdir()) / "megalite-test-packages"
LANGUAGES = ["en", "pt"]
PROMPTS = {"en": "The king went to the", "pt": "O homem foi para a"}


@pytest.fixture(scope="module")
def glass() -> ModuleType:
    wheel = CACHE / "glassllm-0.1.0-py3-none-any.whl"
    if not wheel.is_file():
        words = f"{sys.executable} -m pip download -q --no-deps --timeout 20 --retries 1 -d {CACHE} glassllm==0.1.0"
        done = subprocess.run(words.split(), capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"the registry is out of reach: {done.stderr.strip().splitlines()[-1:]}")
    unpacked = CACHE / "glassllm-0.1.0"
    if not unpacked.is_dir():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    place = unpacked / "glassllm" / "__init__.py"
    spec = importlib.util.spec_from_file_location("glassllm", place, submodule_search_locations=[str(place.parent)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["glassllm"] = module
    spec.loader.exec_module(module)
    return module


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Outputs of a projection in Llama's order: theirs turn neighbours, Llama's turn a channel with one half on."""
    return weight.reshape(heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def as_llama(glass: ModuleType, language: str, folder: Path) -> None:
    """The model and its tokenizer as a LlamaForCausalLM of Hugging Face."""
    model, tokenizer = glass.load_pretrained(language)
    cfg = model.cfg
    with np.load(Path(glass.__file__).parent / "weights" / f"{language}.npz") as stored:
        arrays = {name: stored[name] for name in stored.files if name != "__config__"}
    tensors = {"model.embed_tokens.weight": arrays["E"], "model.norm.weight": arrays["norm_f.gamma"]}
    for n in range(cfg.n_layers):
        ours, theirs = f"blocks.{n}", f"model.layers.{n}"
        for name, part in {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O"}.items():
            weight = arrays[f"{ours}.attn.{part}"].T
            heads = {"q": cfg.n_heads, "k": cfg.n_kv_heads}.get(name)
            tensors[f"{theirs}.self_attn.{name}_proj.weight"] = weight if heads is None else halves(weight, heads)
        for name, part in {"gate": "W1", "up": "W3", "down": "W2"}.items():
            tensors[f"{theirs}.mlp.{name}_proj.weight"] = arrays[f"{ours}.ffn.{part}"].T
        tensors[f"{theirs}.input_layernorm.weight"] = arrays[f"{ours}.norm1.gamma"]
        tensors[f"{theirs}.post_attention_layernorm.weight"] = arrays[f"{ours}.norm2.gamma"]
    save_file({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()}, folder / "model.safetensors")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": cfg.vocab_size,
        "hidden_size": cfg.d_model, "intermediate_size": int(8 * cfg.d_model / 3), "num_hidden_layers": cfg.n_layers,
        "num_attention_heads": cfg.n_heads, "num_key_value_heads": cfg.n_kv_heads, "rms_norm_eps": cfg.eps,
        "max_position_embeddings": cfg.max_len, "rope_theta": cfg.rope_base, "tie_word_embeddings": True,
        "hidden_act": "silu", "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "torch_dtype": "float16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(tokenizer, folder)


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    bpe = tokenizers.models.BPE(vocab=tokenizer.token_to_id, merges=tokenizer.merges, unk_token="<unk>")
    fast = tokenizers.Tokenizer(bpe)
    fast.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFC(), tokenizers.normalizers.Replace(" ", "▁")]
    )
    chunk = tokenizers.Regex(r"\n|▁*[^▁\n]+|▁+")
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Split(chunk, behavior="isolated")
    fast.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.Fuse()])
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>", "bos_token": "<bos>", "pad_token": "<pad>"}')


@pytest.mark.parametrize("language", LANGUAGES)
def test_logits_are_those_of_its_own_forward(glass: ModuleType, pool: Pool, tmp_path: Path, language: str) -> None:
    (tmp_path / "hf").mkdir()
    as_llama(glass, language, tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "ours")
    model, tokenizer = glass.load_pretrained(language)
    ids = tokenizer.encode(PROMPTS[language] * 30)[: model.cfg.max_len]
    assert len(ids) == model.cfg.max_len
    expected = torch.from_numpy(model.forward(ids).data)
    [found] = pool.run(Grid(sizes={}), opened_logits, tmp_path / "ours", torch.tensor([ids]))
    assert (found - expected).abs().max().item() < 1e-5 * expected.abs().max().item()


@pytest.mark.parametrize("language", LANGUAGES)
def test_they_go_out_again_and_generate(glass: ModuleType, tmp_path: Path, language: str) -> None:
    (tmp_path / "hf").mkdir()
    as_llama(glass, language, tmp_path / "hf")
    for source, target, load, save in (("hf", "megalite", "hf", "ours"), ("megalite", "hf", "ours", "back")):
        words = f"--from {source} --to {target} --load {tmp_path / load} --save {tmp_path / save}"
        assert convert_checkpoint.main(words.split()) == 0
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "back"))
    assert before.keys() == after.keys()
    assert all(before[k].dtype == after[k].dtype and torch.equal(before[k], after[k]) for k in before)
    assert (tmp_path / "back" / "tokenizer.json").read_bytes() == (tmp_path / "hf" / "tokenizer.json").read_bytes()

    model, tokenizer = glass.load_pretrained(language)
    prompt = tokenizer.encode(PROMPTS[language])
    expected = [step.token for step in model.generate(prompt, 24, greedy=True)]
    words = [sys.executable, "tools/generate.py", "--load", str(tmp_path / "ours"), "--greedy", "--device", "cpu"]
    words += ["--max-new-tokens", "24", "--prompt", PROMPTS[language]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == tokenizer.decode(prompt + expected) + "\n"
