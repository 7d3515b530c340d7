"""Muon's directions of single matrices."""

import pytest
import torch

from megalite.optimizer.muon import SCALES, directions, newton_schulz


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8), (1, 9)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_singular_values_come_near_one(shape, size):
    matrix = random(*shape) * size
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = newton_schulz(matrix, 5)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6 and values.max() < 1.3
    aligned = (u.t() @ found @ v.t()).diagonal()  # the singular vectors stay
    torch.testing.assert_close(aligned.sort().values, values.sort().values)


def test_nothing_moves_without_a_gradient():
    assert not newton_schulz(torch.zeros(3, 4), 5).any()


def test_more_steps_go_on_with_the_first_set():
    assert not torch.equal(newton_schulz(random(4, 6), 5), newton_schulz(random(4, 6), 6))


@pytest.mark.parametrize(
    ("mode", "wide", "tall"), [("spectral", 4, 4), ("unit_rms_norm", 0.5, 2), ("shape_scaling", 1, 2)]
)
def test_scales(mode, wide, tall):
    assert (SCALES[mode](4, 16), SCALES[mode](16, 4)) == (wide, tall)


@pytest.mark.parametrize("splits", [True, False])
def test_queries_keys_and_values_are_three_matrices_unless_told_otherwise(splits):
    whole = random(2, 4, 3, 12)  # groups, two queries, a key and a value, head width, hidden
    settings = {"splits_qkv": splits, "steps": 5, "scale": "spectral", "extra": 0.5}
    found = directions(whole, **settings)
    parts = (slice(0, 2), slice(2, 3), slice(3, 4)) if splits else (slice(None),)
    for part in parts:
        matrix = whole[:, part].reshape(-1, 12)
        expected = newton_schulz(matrix, 5) * 0.5 * max(matrix.shape) ** 0.5
        torch.testing.assert_close(found[:, part].reshape(-1, 12), expected)
    gated = random(2, 5, 12)  # gate and up are one matrix
    torch.testing.assert_close(
        directions(gated, **settings).view(10, 12), newton_schulz(gated.view(10, 12), 5) * 0.5 * 12**0.5
    )
