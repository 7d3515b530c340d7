"""Numbers about the whole model are the same in every layout, and those of the assembled model."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from megalite.arith.parameters import count_parameters
from megalite.config.schema import Config
from megalite.config.size import model_size
from megalite.mesh import ParallelMesh
from megalite.optimizer.clip import grad_norm
from megalite.optimizer.statistics import num_parameters, num_zeros_in_grad, params_norm
from megalite.shard import Shard
from megalite.train.step import forward_backward
from tests.parallel import harness
from tests.parallel.harness import VOCAB, Layout
from tests.pool import Pool

LAYOUTS: dict[str, Layout] = {
    "one": {},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "tp2-sp": {"tp": 2, "sp": 1},
    "dp2": {"dp": 2},
    "tp2-sp-dp2": {"tp": 2, "sp": 1, "dp": 2},
    "pp2": {"pp": 2},
    "tp2-pp2": {"tp": 2, "pp": 2},
    "dp2-sharded": {"dp": 2, "sharded": 1, "bucket": 1000},
    "tp2-dp2-sharded": {"tp": 2, "sp": 1, "dp": 2, "sharded": 1},
}

Told = tuple[dict[str, float], list[Shard], list[Shard]]


def statistics(mesh: ParallelMesh, settings: Config) -> Told:
    """The numbers, and the gradients and parameters that they are about."""
    engine = harness.make(mesh, settings, torch.float64)
    forward_backward(engine, harness.batch(mesh, settings, 0), step=1)
    numbers = {
        "zeros": num_zeros_in_grad(engine.buffer, mesh),
        "gradients": grad_norm(engine.buffer, mesh),
        "parameters": params_norm(engine.optimizer, mesh),
    }
    assert num_parameters(engine.buffer, mesh) == count_parameters(model_size(settings.model, vocab_size=VOCAB)).total
    return numbers, harness.grad_shards(engine), list(engine.buffer.shards())


@cache
def whole(model: str) -> dict[str, float]:
    """The same numbers, from the tensors of one rank."""
    _, grads, params = Pool().run(harness.grid({}), statistics, settings(model, "one"))[0]
    zeros = sum(int((shard.tensor == 0).sum()) for shard in grads)
    norms = [torch.cat([shard.tensor.reshape(-1) for shard in shards]).norm().item() for shards in (grads, params)]
    return {"zeros": zeros, "gradients": norms[0], "parameters": norms[1]}


def settings(model: str, layout: str) -> Config:
    """The vocabulary is padded differently in each layout; 16 positions of 32 are never seen."""
    config = harness.config(model, LAYOUTS[layout])
    return replace(
        config,
        model=replace(config.model, make_vocab_size_divisible_by=5, max_position_embeddings=2 * harness.SEQUENCE),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_each_element_counts_once(pool: Pool, model: str, layout: str) -> None:
    expected = whole(model)
    assert expected["zeros"] >= (16 * 32 if model == "gpt2" else 0)
    for numbers, _, _ in pool.run(harness.grid(LAYOUTS[layout]), statistics, settings(model, layout)):
        assert numbers["zeros"] == expected["zeros"]
        assert numbers == pytest.approx(expected, rel=1e-10)
