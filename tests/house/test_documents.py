"""What the READMEs name is there: files, make targets, tools and their flags."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.rules import ROOT

GENERATED = {"docs/flags.md"}
DOCUMENTS = [
    "README.md",
    *(
        page
        for pattern in ("examples/*/README.md", "docs/*.md")
        for page in sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
        if page not in GENERATED
    ),
]
MOST_LINES = 120


def joined(block: str) -> list[str]:
    """The lines of a block of sh, with continued lines joined."""
    return [" ".join(line.split()) for line in block.replace("\\\n", " ").splitlines()]


def commands(text: str) -> list[str]:
    """Each command that a document shows, in a block or in backticks, with continued lines joined."""
    blocks = joined("\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)))
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    shown = [command.partition("#")[0].strip() for command in [*blocks, *inline]]
    return [command for command in shown if re.match(r"(\w+=\S+ )*(make|python|torchrun|pip)\b", command)]


def mistakes(text: str, folder: Path) -> list[str]:
    """What a document names that is not there."""
    found = []
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if not link.startswith("http") and not (folder / link).exists():
            found.append(f"link {link}")
    for name in re.findall(r"`((?:tools|examples|benchmarks|megalite|tests)/[\w./-]+)`", text):
        if not (ROOT / name).exists():
            found.append(f"path {name}")
    for command in commands(text):
        words = shlex.split(command)
        if words[0] == "make" and subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True).returncode:
            found.append(command)
        found += [f"{word} in {command}" for word in words if word.endswith(".py") and not (ROOT / word).exists()]
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_named_is_there(document: str) -> None:
    path = ROOT / document
    assert mistakes(path.read_text(), path.parent) == []


def test_mistakes_are_noticed() -> None:
    text = "[a](no.md) `tools/no.py` ```sh\nmake no # x\npython no.py \\\n --flag\n``` `make check` [b](README.md)"
    assert mistakes(text, ROOT) == ["link no.md", "path tools/no.py", "make no", "no.py in python no.py --flag"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_page_is_short(document: str) -> None:
    assert len((ROOT / document).read_text().splitlines()) <= MOST_LINES


def test_the_index_names_every_page() -> None:
    index = (ROOT / "README.md").read_text()
    assert [page for page in [*DOCUMENTS[1:], *GENERATED] if f"({page})" not in index] == []


def test_commands_are_found() -> None:
    assert {"make demo", "make test"} <= set(commands((ROOT / "README.md").read_text()))


@pytest.mark.parametrize("tool", [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tools/*.py"))])
def test_tool_explains_itself(tool: str) -> None:
    run = subprocess.run([sys.executable, tool, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0 and "--" in run.stdout and not run.stderr
