"""What the pages of the examples show is what happens."""

import pytest

from tests.e2e.pages import Clone, blocks, pages
from tests.house.rules import ROOT


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone(tmp_path_factory.mktemp("clone"))


@pytest.mark.parametrize("page", pages("examples"))
def test_page(page: str, clone: Clone) -> None:
    clone.run_page(page)


def test_every_example_has_a_config_a_page_and_one_launch_line() -> None:
    for config in (ROOT / "examples").glob("*/config.toml"):
        page = (config.parent / "README.md").read_text()
        launches = [c for block in blocks(page) for c in block.commands if c.startswith("torchrun")]
        assert len(launches) == 1 and str(config.relative_to(ROOT)) in launches[0]
