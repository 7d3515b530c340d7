"""Fixtures that every test may ask for."""

from collections.abc import Iterator

import hypothesis
import pytest
import torch

from tests.pool import Pool

# The same examples in each run, and no files: a failure is one of the change at hand.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The gloo ranks that all parallel tests share."""
    torch.set_num_threads(1)
    pool = Pool()
    yield pool
    pool.stop()
