"""What inspect_checkpoint says of a checkpoint that is known in every number."""

import hashlib
import json
import zlib
from pathlib import Path

import pytest
import torch

from megalite.checkpoint.save import save
from megalite.mesh import Group
from megalite.shard import Shard
from tools.inspect_checkpoint import main

ALONE = Group(name="world", ranks=(0,), rank=0)


def saved(root: Path, iteration: int, *, scale: float = 1.0, base: int = 10000, extra: bool = False) -> None:
    tensors = {
        "layers.0.attention.qkv.weight": torch.full((2, 3, 4), scale),
        "layers.0.mlp.fc1.weight": torch.tensor([3.0, 4.0]).double(),
        "layers.1.mlp.fc1.weight": torch.tensor([float("nan"), 1.0, float("inf")]),
        "final_norm.weight": torch.zeros(5).bfloat16(),
        **({"head.weight": torch.ones(7)} if extra else {}),
    }
    shards = [
        Shard(name=name, global_shape=tuple(t.shape), box=tuple((0, n) for n in t.shape), tensor=t)
        for name, t in tensors.items()
    ]
    scalars = {"iteration": iteration, "model": {"rotary_base": base, "swiglu": True}, "list": [1, 2]}
    save(root, iteration, shards, scalars, {"config.toml": b"a = 1\n"}, ALONE)


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(list(map(str, words))) == 0
    return capsys.readouterr().out


def test_norms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, 3)
    lines = {line.split()[0]: line for line in said(capsys, tmp_path, "--norms").splitlines() if line.strip()}
    assert "[2, 3, 4]  norm 4.89898" in lines["layers.0.attention.qkv.weight"]
    assert "float64" in lines["layers.0.mlp.fc1.weight"] and "norm 5" in lines["layers.0.mlp.fc1.weight"]
    assert "2 of 3 NOT FINITE" in lines["layers.1.mlp.fc1.weight"]
    assert "NOT FINITE" not in lines["final_norm.weight"] and "norm" not in said(capsys, tmp_path).replace("_norm", "")


def test_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, 3)
    lines = [" ".join(line.split()) for line in said(capsys, tmp_path, "--tree", 2).splitlines()]
    assert "layers 3 tensors, 29 elements, 124 B, float32, float64" in lines
    assert "0 2 tensors, 26 elements, 112 B, float32, float64" in lines
    assert "1 3 elements, 12 B, float32" in lines and "weight 5 elements, 10 B, bfloat16" in lines
    assert not any("qkv" in line for line in lines)


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "a", 3)
    saved(tmp_path / "b", 4, scale=1.5, base=500000, extra=True)
    saved(tmp_path / "b", 5)
    found = said(capsys, tmp_path / "a", "--compare", tmp_path / "b", "--compare-step", 4, "--norms").splitlines()
    start = found.index("scalars and tensors that differ, here | there:")
    assert found[start + 1 :] == [
        "  iteration: 3 | 4",
        "  model.rotary_base: 10000 | 500000",
        "  head.weight: not there | float32 [7]",
        "values that differ:",
        "  layers.0.attention.qkv.weight: 24 of 24 elements, by 2.44949 of a norm of 4.89898",
    ]
    found = said(capsys, tmp_path / "a", "--compare", tmp_path / "b").splitlines()
    assert found[2:] == ["scalars and tensors that differ, here | there:", "  iteration: 3 | 5"]
    found = said(capsys, tmp_path / "a", "--compare", tmp_path / "a", "--norms").splitlines()
    assert found[2:] == ["No scalar differs.", "No value of a tensor of both differs."]


@pytest.mark.parametrize("earlier", [False, True])
def test_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str], earlier: bool) -> None:
    """Those of now, and the SHA-256 of checkpoints from before."""
    saved(tmp_path, 3)
    file = tmp_path / "iter_0000003" / "model-00000.safetensors"
    data = bytearray(file.read_bytes())
    if earlier:
        index = json.loads((file.parent / "index.json").read_text())
        assert index["files"][file.name].pop("checksum") == f"crc32:{zlib.crc32(data):08x}"
        index["files"][file.name]["sha256"] = hashlib.sha256(data).hexdigest()
        (file.parent / "index.json").write_text(json.dumps(index))
    assert "All 2 files are as they were saved." in said(capsys, tmp_path, "--verify-integrity")
    data[-1] ^= 1
    file.write_bytes(data)
    assert main([str(tmp_path), "--verify-integrity"]) == 1
    assert "damaged file: model-00000.safetensors" in capsys.readouterr().out
