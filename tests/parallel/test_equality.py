"""The promise of the house: the same loss, the same gradients and the same curve in every layout."""

from functools import cache
from itertools import product

import pytest
import torch

from megalite.grid import Grid
from megalite.shard import Shard
from tests.parallel import faults, harness
from tests.parallel.harness import VARIANTS, Layout, soak
from tests.pool import Pool

LAYOUTS: dict[str, Layout] = {
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "tp2-sp": {"tp": 2, "sp": 1},
    "dp2": {"dp": 2},
    "dp4": {"dp": 4},
    "dp2-overlap": {"dp": 2, "overlap": 1, "bucket": 4000},
    "tp2-sp-dp2": {"tp": 2, "sp": 1, "dp": 2},
    "dp2-sharded": {"dp": 2, "sharded": 1},
    "dp4-sharded": {"dp": 4, "sharded": 1, "overlap": 1, "gather": 1, "bucket": 4000},
    "pp2": {"pp": 2},
    "tp2-sp-pp2": {"tp": 2, "sp": 1, "pp": 2, "schedule": "zb-h1"},
}
FAMILIES = ["gpt2", "llama"]
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}
GRADIENT_LIMIT = {"fp64": 1e-10, "fp32": 1e-5}
CURVE_LIMIT = {"fp64": (1e-9, 1e-9), "fp32": (1e-4, 1e-3)}
"""Of the loss and of the gradient norm; those of fp32 are PARITY in the handed cases."""
ONE = Grid(sizes={})
STEPS = 20

Gradients = tuple[float, list[Shard]]


@cache
def one_rank_gradients(model: str, dtype: str, dropout: float) -> Gradients:
    settings = harness.config(model, {}, dropout=dropout, micro_batch_size=2)
    return Pool().run(ONE, harness.gradients, settings, DTYPES[dtype])[0]


@cache
def one_rank_curve(model: str, dtype: str, optimizer: str) -> list[tuple[float, float]]:
    return Pool().run(ONE, harness.curve, harness.config(model, {}, optimizer=optimizer), DTYPES[dtype], STEPS)[0]


def complaints(results: list[Gradients], reference: Gradients, limit: float) -> list[str]:
    """All in which the ranks' gradients differ from those of one rank, by more than `limit`."""
    losses = [loss for loss, _ in results]
    found, said = harness.assemble([shards for _, shards in results])
    expected, _ = harness.assemble([reference[1]])
    if set(losses) != {losses[0]}:
        said.append(f"the ranks' losses differ: {losses}")
    if not abs(losses[0] - reference[0]) <= limit * abs(reference[0]):
        said.append(f"loss {losses[0]} instead of {reference[0]}")
    assert found.keys() == expected.keys()
    distances = {name: harness.distance(found[name], expected[name]) for name in expected}
    return said + [f"{name}: off by {d:.1e}" for name, d in distances.items() if not d <= limit]


@pytest.mark.parametrize(("dtype", "dropout"), [("fp64", 0.1), ("fp32", 0.0), soak("fp64", 0.0), soak("fp32", 0.1)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", FAMILIES)
def test_loss_and_gradients(pool: Pool, model: str, layout: str, dtype: str, dropout: float) -> None:
    settings = harness.config(model, LAYOUTS[layout], dropout=dropout)
    results = pool.run(harness.grid(LAYOUTS[layout]), harness.gradients, settings, DTYPES[dtype])
    assert not complaints(results, one_rank_gradients(model, dtype, dropout), GRADIENT_LIMIT[dtype])


FULL = list(product(VARIANTS, LAYOUTS, DTYPES, [0.0, 0.1]))
COVERING = [
    (model, layout, "fp64", 0.1 if i % 2 else 0.0)
    for i, model in enumerate(VARIANTS)
    for layout in [
        ("tp2", "tp2-sp", "tp4", "tp2-sp-dp2", "pp2")[i % 5],
        ("tp2-sp", "dp2-overlap", "tp2", "tp2-sp-pp2", "tp4")[i % 5],
    ]
]
"""Each variant plain and with sequence parallelism or more ranks, and both dropouts; `make soak` runs all."""


@pytest.mark.parametrize(
    ("model", "layout", "dtype", "dropout"),
    COVERING + [soak(*case) for case in FULL if case not in COVERING],
)
def test_variants(pool: Pool, model: str, layout: str, dtype: str, dropout: float) -> None:
    test_loss_and_gradients(pool, model, layout, dtype, dropout)


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_a_fault_is_caught(pool: Pool, fault: str) -> None:
    """A check that cannot fail is worth nothing: each fault, put into a sound program, must raise complaints."""
    layout = LAYOUTS[faults.FAULTS[fault].layout]
    settings = harness.config("gpt2", layout, dropout=faults.FAULTS[fault].dropout)
    results = pool.run(harness.grid(layout), faults.gradients_with, fault, settings, torch.float32)
    reference = one_rank_gradients("gpt2", "fp32", faults.FAULTS[fault].dropout)
    assert complaints(results, reference, GRADIENT_LIMIT["fp32"])


# Adam hides a constant factor in the gradient, which SGD shows.
CURVES = list(product(FAMILIES, LAYOUTS, DTYPES, ("adam", "sgd")))
SHOWN = [("gpt2", layout, "fp64", "adam") for layout in ("tp2", "dp2-overlap", "dp4-sharded", "tp2-sp-pp2")] + [
    ("llama", layout, "fp32", "sgd") for layout in ("tp2-sp-dp2", "dp2", "dp2-sharded", "pp2")
]


@pytest.mark.parametrize(
    ("model", "layout", "dtype", "optimizer"), SHOWN + [soak(*case) for case in CURVES if case not in SHOWN]
)
def test_curves(pool: Pool, model: str, layout: str, dtype: str, optimizer: str) -> None:
    settings = harness.config(model, LAYOUTS[layout], optimizer=optimizer)
    curves = pool.run(harness.grid(LAYOUTS[layout]), harness.curve, settings, DTYPES[dtype], STEPS)
    assert all(curve == curves[0] for curve in curves), "ranks disagree"
    reference = torch.tensor(one_rank_curve(model, dtype, optimizer), dtype=torch.float64)
    off = ((torch.tensor(curves[0], dtype=torch.float64) - reference).abs() / reference).amax(0)
    assert (off <= torch.tensor(CURVE_LIMIT[dtype], dtype=torch.float64)).all(), f"loss and norm off by {off.tolist()}"
