"""Fixtures of the cases."""

import pytest

from tests.cases.fixtures import Materials
from tests.cases.harness import Program
from tests.pool import Pool


@pytest.fixture(scope="session")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Materials:
    return Materials(tmp_path_factory.mktemp("materials"))


@pytest.fixture(scope="session")
def program(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(pool, tmp_path_factory.mktemp("logs"))
