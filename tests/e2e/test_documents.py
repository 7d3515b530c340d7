"""What README and the pages of docs/ show is what happens."""

import socket
from pathlib import Path

import pytest

from tests.e2e.pages import Block, Clone, blocks, pages


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone(tmp_path_factory.mktemp("clone"))


@pytest.mark.parametrize("page", [*pages(""), *pages("docs")])
def test_page(page: str, clone: Clone) -> None:
    clone.run_page(page)


def test_what_is_quoted_must_be_said(tmp_path: Path) -> None:
    page = "```sh\npython -c 'print(12)' \\\n  # exit status 0\npython -c 'raise SystemExit(3)'  # exit status 3\n```\n"
    (block,) = blocks(page + "```text\n12\n...\n```\n")
    clone = Clone(tmp_path)
    clone.run_block(block)
    with pytest.raises(AssertionError, match="not said"):
        clone.run_block(Block(block.commands, ["thirteen"]))
    with pytest.raises(AssertionError, match="not said"):
        clone.run_block(Block(["python -c 'print(12)' --help"], ["13"]))
    with pytest.raises(AssertionError, match="SystemExit"):
        clone.run_block(Block(["python -c 'raise SystemExit(3)'"]))


def test_a_busy_port_is_named_before_we_run(clone: Clone) -> None:
    with socket.create_server(("", 0)) as held:
        port = held.getsockname()[1]
        said = clone.output(f"torchrun --master-port {port} pretrain_gpt.py --help  # exit status 1")
    assert "DistNetworkError" in said and f"port: {port}" in said and "EADDRINUSE" in said
    assert "Usage" not in said
