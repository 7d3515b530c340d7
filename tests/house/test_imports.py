"""What really imports with what: in a fresh interpreter where some packages cannot be found."""

import subprocess
import sys
from collections.abc import Iterable

from tests.house.rules import CORE_PACKAGES, ROOT, STRATUM, modules

OPTIONAL = (
    *("tokenizers", "transformers", "tiktoken", "huggingface_hub", "regex", "yaml"),
    *("matplotlib", "PIL", "pandas", "scipy"),
    *("tensorboard", "tqdm", "rich", "apex", "pytest", "ruff", "mypy"),
)

IMPORT_WITHOUT = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent, names = (set(part.split(",")) for part in sys.argv[1:])
sys.meta_path.insert(0, Absent())
for name in sorted(names):
    importlib.import_module(name)
"""


def _import(names: Iterable[str], *, without: Iterable[str]) -> str:
    """What an interpreter without these packages prints when it imports the modules: nothing where all is well."""
    command = [sys.executable, "-c", IMPORT_WITHOUT, ",".join(without), ",".join(names)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stderr


def test_stratum_imports_without_any_package() -> None:
    names = [module.name for module in modules("megalite") if module.unit in STRATUM]
    assert {"megalite.environment", "megalite.grid"} <= set(names)
    assert _import(names, without=(*CORE_PACKAGES, *OPTIONAL)) == ""


def test_all_imports_with_the_core_packages() -> None:
    names = [module.name for module in modules("megalite", "tools", "pretrain_gpt.py")]
    assert len(names) > 10
    assert _import(names, without=OPTIONAL) == ""


def test_a_blocked_package_is_missed() -> None:
    assert "No module named 'torch'" in _import(["megalite.shard"], without=["torch"])
