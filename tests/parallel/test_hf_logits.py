"""What transformers computes, computed from the same folder: every family, on one rank and on two."""

from pathlib import Path

import pytest
import torch

from megalite.checkpoint.hf.importing import import_folder
from megalite.grid import Grid
from tests.families import MODELS, POSITIONS, VOCAB, make
from tests.parallel.test_opened import opened_logits
from tests.pool import Pool

TEXT = torch.randint(VOCAB, (2, POSITIONS), generator=torch.Generator().manual_seed(3))
SPLIT = ("gpt2", "llama, biases", "mistral, window", "qwen2, upper windows", "qwen3")
"""Those that two ranks compute too."""


@pytest.mark.parametrize(("name", "tp"), [*((name, 1) for name in MODELS), *((name, 2) for name in SPLIT)])
def test_logits_are_those_of_transformers(pool: Pool, tmp_path: Path, name: str, tp: int) -> None:
    with torch.no_grad():
        expected = make(name, tmp_path / "hf")(TEXT).logits
    import_folder(tmp_path / "hf", tmp_path / "ours")
    for found in pool.run(Grid(sizes={"tp": tp}), opened_logits, tmp_path / "ours", TEXT):
        assert ((found - expected).abs().max() / expected.abs().max()).item() < 1e-5
