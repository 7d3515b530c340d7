"""Fixtures that every test may ask for."""

from collections.abc import Iterator

import pytest
import torch

from tests.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The gloo ranks that all parallel tests share."""
    torch.set_num_threads(1)
    pool = Pool()
    yield pool
    pool.stop()
