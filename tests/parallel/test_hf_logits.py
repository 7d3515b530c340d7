"""What transformers computes, computed from the same folder: every family, and in layouts straight from its folder."""

from pathlib import Path

import pytest
import torch

from megalite.checkpoint.hf.importing import import_folder
from megalite.grid import Grid
from tests.families import MODELS, POSITIONS, VOCAB, make
from tests.parallel.harness import soak
from tests.parallel.test_opened import opened_logits
from tests.pool import Pool

TEXT = torch.randint(VOCAB, (2, POSITIONS), generator=torch.Generator().manual_seed(3))
SPLIT = {"gpt2": "tp", "llama, biases": "pp", "mistral, window": "tp", "qwen2, upper windows": "pp", "qwen3": "tp"}
"""Those that two ranks compute too, and along which axis."""
OTHERS = [(name, axis) for name in MODELS for axis in ("tp", "pp") if SPLIT.get(name) != axis]
OTHERS.remove(("qwen2, tied, one key for all", "tp"))  # refused: its one group of queries is not split


def compare(pool: Pool, folder: Path, expected: torch.Tensor, grid: Grid) -> None:
    for found in pool.run(grid, opened_logits, folder, TEXT):
        assert ((found - expected).abs().max() / expected.abs().max()).item() < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(pool: Pool, tmp_path: Path, name: str) -> None:
    with torch.no_grad():
        expected = make(name, tmp_path / "hf")(TEXT).logits
    import_folder(tmp_path / "hf", tmp_path / "ours")
    compare(pool, tmp_path / "ours", expected, Grid(sizes={}))


@pytest.mark.parametrize(
    ("name", "axis"),
    [*SPLIT.items(), *(soak(*row) for row in OTHERS)],
)
def test_a_folder_goes_straight_into_a_layout(pool: Pool, tmp_path: Path, name: str, axis: str) -> None:
    with torch.no_grad():
        expected = make(name, tmp_path / "hf", max_shard_size="30KB")(TEXT).logits
    compare(pool, tmp_path / "hf", expected, Grid(sizes={axis: 2}))
