"""What the READMEs name is there: files, make targets, tools and their flags."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.rules import ROOT

DOCUMENTS = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("examples/*/README.md")))]


def commands(text: str) -> list[str]:
    """Each command that a document shows, in a block or in backticks, with continued lines joined."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    shown = [command.partition("#")[0].strip() for command in [*blocks, *inline]]
    return [command for command in shown if re.match(r"(make|python|torchrun|pip)\b", command)]


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
    assert mistakes(text, ROOT) == ["link no.md", "path tools/no.py", "make no", "no.py in python no.py   --flag"]


def test_commands_are_found() -> None:
    assert {"make demo", "make test"} <= set(commands((ROOT / "README.md").read_text()))


@pytest.mark.parametrize("tool", [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tools/*.py"))])
def test_tool_explains_itself(tool: str) -> None:
    run = subprocess.run([sys.executable, tool, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0 and "--" in run.stdout and not run.stderr
