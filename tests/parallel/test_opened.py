"""A checkpoint opened from its folder alone: the logits of transformers, and the same text at any size."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megalite.checkpoint.hf.importing import import_folder
from megalite.generate.generate import generate
from megalite.generate.sampling import Sampling, choose
from megalite.grid import Grid
from megalite.mesh import ParallelMesh
from megalite.model.context import Context
from megalite.train.opened import open_checkpoint
from tests.pool import Pool

transformers = pytest.importorskip("transformers")

VOCAB, POSITIONS = 71, 32
SIZES = {"tp1": Grid(sizes={}), "tp2": Grid(sizes={"tp": 2}), "pp2": Grid(sizes={"pp": 2})}
TEXT = torch.randint(VOCAB, (2, 24), generator=torch.Generator().manual_seed(3))


ROPE = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
}


@pytest.fixture(scope="module", params=ROPE)
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A Llama of transformers, every tensor drawn anew, and its checkpoint."""
    source, root = tmp_path_factory.mktemp("hf"), tmp_path_factory.mktemp("megalite")
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=88,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=3e-6,
        rope_parameters=ROPE[request.param],
    )
    torch.manual_seed(11)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(source)
    import_folder(source, root)
    return model, root


def opened_logits(mesh: ParallelMesh, root: Path, text: Tensor) -> Tensor:
    model = open_checkpoint(root, mesh=mesh).model
    positions = torch.arange(text.shape[1]).repeat(text.shape[0], 1)
    return model(text, Context(position_ids=positions))


def continued(mesh: ParallelMesh, root: Path, sampling: Sampling, seed: int) -> list[int]:
    opened = open_checkpoint(root, mesh=mesh)
    prompt = TEXT[0, :5].tolist()
    return list(
        generate(
            opened.model,
            prompt,
            max_new_tokens=100,
            sampling=sampling,
            eod=-1,
            seed=seed,
            limit=opened.max_positions,
            device=mesh.device,
        )
    )


@pytest.mark.parametrize("size", SIZES)
def test_logits_are_those_of_transformers(pool: Pool, llama: tuple[Any, Path], size: str) -> None:
    model, root = llama
    with torch.no_grad():
        expected = model(TEXT).logits
    for found in pool.run(SIZES[size], opened_logits, root, TEXT):
        assert ((found - expected).abs().max() / expected.abs().max()).item() < 1e-5


@pytest.mark.parametrize("size", SIZES)
def test_greedy_text_is_that_of_whole_sequences(pool: Pool, llama: tuple[Any, Path], size: str) -> None:
    model, root = llama
    text = TEXT[0, :5].tolist()
    while len(text) < POSITIONS:
        with torch.no_grad():
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    for found in pool.run(SIZES[size], continued, root, Sampling(temperature=0), 0):
        assert found == text[5:]


def test_drawn_text_follows_the_seed_at_any_size(pool: Pool, llama: tuple[Any, Path]) -> None:
    sampling = Sampling(temperature=0.9, top_k=20, top_p=0.9)
    [one] = pool.run(SIZES["tp1"], continued, llama[1], sampling, 5)
    [other] = pool.run(SIZES["tp1"], continued, llama[1], sampling, 6)
    for size in ("tp2", "pp2"):
        assert pool.run(SIZES[size], continued, llama[1], sampling, 5) == [one, one]
    assert one != other


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        (Sampling(temperature=0), {2}),
        (Sampling(top_k=1), {2}),
        (Sampling(top_k=2), {2, 0}),
        (Sampling(top_p=0.5), {2}),
        (Sampling(top_p=0.9), {2, 0}),
        (Sampling(), {0, 1, 2}),
        (Sampling(temperature=1e-3), {2}),
    ],
)
def test_sampling(sampling: Sampling, possible: set[int]) -> None:
    scores = torch.tensor([0.3, 0.1, 0.6]).log()
    generator = torch.Generator().manual_seed(0)
    assert {choose(scores, sampling, generator) for _ in range(200)} == possible


@pytest.mark.parametrize(
    ("wrong", "flag"), [({"temperature": -1}, "--temperature"), ({"top_k": -1}, "--top-k"), ({"top_p": 0}, "--top-p")]
)
def test_wrong_sampling_names_the_flag(wrong: dict[str, float], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        Sampling(**wrong)  # type: ignore[arg-type]
