"""Loading takes the memory of the shards that are filled, which are there before, and little more; a conversion that of
a tensor, and of what is on its way to the disk."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.checkpoint import peak_above
from megalite.checkpoint.foreign import fill
from megalite.checkpoint.hf.exporting import export_folder
from megalite.checkpoint.hf.families import family_of
from megalite.checkpoint.hf.folder import ModelFolder
from megalite.checkpoint.hf.importing import import_folder
from megalite.checkpoint.hf.rows import same
from megalite.checkpoint.load import load
from megalite.checkpoint.place import find
from megalite.checkpoint.save import save
from megalite.mesh import Group
from megalite.shard import Box, Shard
from tests.parallel.harness import soak

ALONE = Group(name="world", ranks=(0,), rank=0)
ROWS, COLUMNS = 4096, 6144
NAMES = ("layers.0.mlp.fc1.weight", "layers.1.mlp.fc1.weight")
SIZE = ROWS * COLUMNS * 4 / 1e6
"""Megabytes of one tensor."""
BUFFER = 4 * (1 << 24) / 1e6 + 15
"""Four windows into the files, and what Python needs by the way."""


def boxes(parts: int, dim: int) -> list[Box]:
    """Equal parts along a dimension."""
    cuts = [(n * (ROWS, COLUMNS)[dim] // parts, (n + 1) * (ROWS, COLUMNS)[dim] // parts) for n in range(parts)]
    return [tuple(cut if d == dim else (0, n) for d, n in enumerate((ROWS, COLUMNS))) for cut in cuts]


def shards(of: list[Box], dtype: torch.dtype) -> list[Shard]:
    """Boxes of each tensor, in memory that was touched."""

    def part(name: str, box: Box) -> Shard:
        shape = [stop - start for start, stop in box]
        return Shard(name=name, global_shape=(ROWS, COLUMNS), box=box, tensor=torch.full(shape, 2.0, dtype=dtype))

    return [part(name, box) for name in NAMES for box in of]


CASES = {
    "as it was saved": ((1, 0), (1, 0), torch.float32),
    "rows": ((1, 0), (2, 0), torch.float32),
    "columns, in another dtype": ((1, 0), (2, 1), torch.bfloat16),
    "rows into columns": ((2, 0), (2, 1), torch.float32),
}


@pytest.mark.parametrize("case", ["columns, in another dtype", *(soak(name) for name in CASES)])
def test_a_rank_needs_its_shards_and_a_buffer(tmp_path: Path, case: str) -> None:
    """Rank 0 of those that hold equal parts."""
    there, here, dtype = CASES[case]
    save(tmp_path, 1, shards(boxes(*there), torch.float32), {}, {}, ALONE)
    mine = shards(boxes(*here)[:1], dtype)
    for shard in mine:
        shard.tensor.zero_()
    peak = peak_above(lambda: load(find(tmp_path), mine, ALONE))
    assert peak < BUFFER < SIZE, f"{peak:.0f} MB above the {sum(s.tensor.nbytes for s in mine) / 1e6:.0f} MB of shards"
    assert all(bool((shard.tensor == 2).all()) for shard in mine)


def test_a_hugging_face_folder_takes_one_of_its_tensors_at_most(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {name: torch.full((ROWS, COLUMNS), 2.0) for name in NAMES}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    del tensors
    mine, held = shards(boxes(2, 0)[:1], torch.float32), ModelFolder(tmp_path).tensors

    def work() -> None:
        for shard in mine:
            fill(shard, same(shard.name, shard.name, (ROWS, COLUMNS)), held)

    assert peak_above(work) < SIZE + 15 < 2 * SIZE


@pytest.mark.soak
def test_a_conversion_holds_no_model(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 10,
        "num_attention_heads": 8, "vocab_size": 100, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    family = family_of(config)
    rows = family.rows(family.read_config(config)[0])
    tensors = {part.name: torch.full(part.shape, 2.0) for row in rows for part in row.parts}
    save_file(tensors, tmp_path / "hf" / "model.safetensors")
    total, largest = (of(t.nbytes for t in tensors.values()) / 1e6 for of in (sum, max))
    del tensors
    most = 4 * largest + 15  # gate and up, mapped and copied
    assert most < total / 2
    assert peak_above(lambda: import_folder(tmp_path / "hf", tmp_path / "ours")) < most
    assert peak_above(lambda: export_folder(find(tmp_path / "ours"), tmp_path / "back")) < most
