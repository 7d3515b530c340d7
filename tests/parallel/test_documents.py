"""Documents kept apart: attention one by one, in any layout, equals attention under a mask on one rank."""

from functools import cache

import pytest
import torch

from tests.parallel import harness
from tests.parallel.harness import Layout, soak
from tests.parallel.test_equality import GRADIENT_LIMIT, LAYOUTS, ONE, Gradients, complaints
from tests.pool import Pool

SHOWN = ("tp2", "tp2-sp", "tp2-sp-pp2")


@cache
def masked() -> Gradients:
    """Scaled by layer and back, scores take the path that masks them: the same mathematics."""
    settings = harness.config("qk layer scaling", {}, micro_batch_size=2, documents=True)
    return Pool().run(ONE, harness.gradients, settings, torch.float64)[0]


@pytest.mark.parametrize("layout", [*SHOWN, *(soak(layout) for layout in LAYOUTS if layout not in SHOWN)])
def test_documents_apart(pool: Pool, layout: str) -> None:
    asked: Layout = LAYOUTS[layout]
    settings = harness.config("gpt2", asked, micro_batch_size=2, documents=True)
    results = pool.run(harness.grid(asked), harness.gradients, settings, torch.float64)
    assert not complaints(results, masked(), GRADIENT_LIMIT["fp64"])


def test_documents_make_a_difference(pool: Pool) -> None:
    settings = harness.config("gpt2", {}, micro_batch_size=2)
    [together] = pool.run(ONE, harness.gradients, settings, torch.float64)
    assert complaints([together], masked(), 1e-3)
