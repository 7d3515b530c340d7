"""The promise of the house: the same loss and the same gradients in every layout."""

from functools import cache

import pytest
import torch

from megalite.grid import Grid
from tests.parallel import harness
from tests.parallel.harness import MODELS
from tests.pool import Pool

LAYOUTS = {
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "tp2-sp": {"tp": 2, "sp": 1},
    "dp2": {"dp": 2},
    "dp4": {"dp": 4},
    "dp2-overlap": {"dp": 2, "overlap": 1, "bucket": 4000},
    "tp2-sp-dp2": {"tp": 2, "sp": 1, "dp": 2},
}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}
GRADIENT_LIMIT = {"fp64": 1e-10, "fp32": 1e-5}
ONE = Grid(sizes={})

Case = tuple[str, str, float]


@cache
def one_rank_gradients(model: str, dtype: str, dropout: float) -> tuple[float, dict[str, torch.Tensor]]:
    [(loss, shards)] = Pool().run(
        ONE, harness.gradients, harness.config(model, {}, dropout=dropout, micro_batch_size=2), DTYPES[dtype]
    )
    return loss, harness.assemble([shards])


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_loss_and_gradients(pool: Pool, model: str, layout: str, dtype: str, dropout: float) -> None:
    loss, reference = one_rank_gradients(model, dtype, dropout)
    settings = harness.config(model, LAYOUTS[layout], dropout=dropout)
    results = pool.run(harness.grid(LAYOUTS[layout]), harness.gradients, settings, DTYPES[dtype])
    found = harness.assemble([shards for _, shards in results])
    limit = GRADIENT_LIMIT[dtype]
    assert {rank_loss for rank_loss, _ in results} == {results[0][0]}, "ranks disagree on the loss"
    assert abs(results[0][0] - loss) <= limit * abs(loss)
    assert found.keys() == reference.keys()
    far = {name: d for name in reference if (d := harness.distance(found[name], reference[name])) > limit}
    assert not far
