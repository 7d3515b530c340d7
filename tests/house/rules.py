"""The rules of the house (DESIGN.md, section 2) as functions from a module to its breaches."""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LEVELS: tuple[tuple[str, ...], ...] = (
    # The torch-free stratum.
    ("environment",),
    ("config",),
    ("arith", "grid"),
    ("schedule",),
    ("rules",),
    ("validate",),
    ("plan",),
    # The runtime.
    ("device",),
    ("observe",),
    ("mesh", "shard", "gradient", "ops"),
    ("comm",),
    ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel", "data_parallel"),
    ("model",),
    ("optimizer", "checkpoint", "data"),
    ("train", "generate", "doctor", "migrate", "report"),
    ("pretrain_gpt", "tools"),
)
"""Each unit may import lower rows only; the units of one row do not know each other."""
LEVEL = {unit: level for level, units in enumerate(LEVELS) for unit in units}
STRATUM = {unit for unit in LEVEL if LEVEL[unit] <= LEVEL["plan"]}
BELOW_CONFIG = {unit for unit in LEVEL if LEVEL["device"] <= LEVEL[unit] <= LEVEL["data"]}
"""The units that see values, never the config."""
PLAIN_CONFIG_MODULES = ("megalite.config.split", "megalite.config.window_pattern")
"""What of megalite.config is functions of plain values."""

CORE_PACKAGES = {"torch", "numpy", "sentencepiece", "safetensors"}
OURS = {"megalite", "tools", "tests", "pretrain_gpt"}

OWNERS: dict[str, set[str]] = {
    "torch.distributed": {"mesh", "comm"},
    "torch.cuda": {"device"},
    "os.environ": {"environment"},
    "os.getenv": {"environment"},
    "os.putenv": {"environment"},
    # Nothing is pickled: a checkpoint is data, and reading one runs no code.
    "pickle": set(),
    "torch.save": set(),
    "torch.load": set(),
}
"""Who may say these names."""

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 65
VAGUE_NAMES = {"utils", "util", "helpers", "misc", "common"}


@dataclass(frozen=True, kw_only=True)
class Module:
    """One source file. `name` is its dotted name: `megalite.model.gpt`, `tools.generate`, `pretrain_gpt`."""

    name: str
    text: str
    is_package: bool = False
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", ast.parse(self.text, self.name))

    @property
    def unit(self) -> str:
        """What LEVELS calls it; the empty string for `megalite/__init__.py`."""
        first, _, rest = self.name.partition(".")
        return rest.partition(".")[0] if first == "megalite" else first

    @cached_property
    def imports(self) -> list[tuple[str, int, bool]]:
        """Each import as (dotted name, line, whether inside a function)."""
        return list(_imports(self.tree, inside=False))

    @cached_property
    def names(self) -> list[tuple[str, int]]:
        """Each dotted name that the code says, imports and aliases resolved, as (name, line)."""
        aliases = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom):
                aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        said = [(name, line) for name, line, _ in self.imports]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and (parts := _chain(node)):
                said.append((".".join([aliases.get(parts[0], parts[0]), *parts[1:]]), node.lineno))
        return said


def _imports(node: ast.AST, *, inside: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            yield from ((f"{base}.{alias.name}", child.lineno, inside) for alias in child.names)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, inside=inside or is_function)


def _chain(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (parts := _chain(node.value)):
        return [*parts, node.attr]
    return []


def _our_unit(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] == "megalite":
        return parts[1] if len(parts) > 1 else None
    return parts[0] if parts[0] in OURS else None


def imports_point_down(module: Module) -> Iterator[str]:
    """A unit imports lower levels only, and siblings do not import each other."""
    if not module.unit:
        return
    if module.unit not in LEVEL:
        yield f"{module.unit} has no level: add it to LEVELS"
        return
    for name, line, _ in module.imports:
        if name.startswith("."):
            yield f"line {line}: a relative import; write the full name"
        unit = _our_unit(name)
        if unit is not None and unit != module.unit and LEVEL.get(unit, len(LEVELS)) >= LEVEL[module.unit]:
            yield f"line {line}: {module.unit} imports {name}, which is not below it"


def stratum_is_pure(module: Module) -> Iterator[str]:
    """The torch-free stratum imports itself and the standard library; a function may import an optional parser."""
    if module.unit not in STRATUM:
        return
    for name, line, inside in module.imports:
        root = name.partition(".")[0]
        if root in CORE_PACKAGES or (not inside and root != "megalite" and root not in sys.stdlib_module_names):
            yield f"line {line}: the torch-free stratum imports {name}"


def own_imports_at_top(module: Module) -> Iterator[str]:
    """Our modules are imported at the top, where the arrows are seen; pretrain_gpt alone validates first."""
    for name, line, inside in module.imports:
        if inside and name.partition(".")[0] in OURS and module.name != "pretrain_gpt":
            yield f"line {line}: {name} imported inside a function"


def optional_imports_inside(module: Module) -> Iterator[str]:
    """Optional packages are imported where they are used, so that everything imports without them."""
    known = CORE_PACKAGES | OURS | sys.stdlib_module_names
    for name, line, inside in module.imports:
        if not inside and name.partition(".")[0] not in known:
            yield f"line {line}: optional package {name} imported at the top"


def no_global(module: Module) -> Iterator[str]:
    """State is passed, never kept in a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"


def owned_names(module: Module) -> Iterator[str]:
    """Each name of OWNERS is said by its owners alone."""
    for name, line in module.names:
        for owned, owners in OWNERS.items():
            if (name == owned or name.startswith(owned + ".")) and module.unit not in owners:
                yield f"line {line}: {owned} is said only by {', '.join(sorted(owners)) or 'nobody'}"


def no_float_cast(module: Module) -> Iterator[str]:
    """A cast names the wider of two dtypes; `.float()` would narrow the fp64 proof to fp32."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "float":
            yield f"line {node.lineno}: .float()"


def config_is_invisible(module: Module) -> Iterator[str]:
    """Past train/build.py settings arrive as plain values."""
    for name, line, _ in module.imports:
        seen = module.unit in BELOW_CONFIG and _our_unit(name) == "config"
        if seen and not name.startswith(PLAIN_CONFIG_MODULES):
            yield f"line {line}: {module.unit} imports {name}"


def init_is_empty(module: Module) -> Iterator[str]:
    """A package holds no code of its own."""
    if module.is_package and len(module.text.splitlines()) > 1:
        yield "__init__.py holds more than one line"


def sizes(module: Module) -> Iterator[str]:
    """A reader can hold a file, and a function, in the head."""
    count = len(module.text.splitlines())
    if count >= MAX_FILE_LINES:
        yield f"{count} lines; a file has fewer than {MAX_FILE_LINES}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"line {node.lineno}: {node.name} has {length} lines; at most {MAX_FUNCTION_LINES}"


def telling_name(module: Module) -> Iterator[str]:
    """A module is named for its idea."""
    if module.name.rpartition(".")[2] in VAGUE_NAMES:
        yield f"{module.name} says nothing of what it holds"


Rule = Callable[[Module], Iterator[str]]

FOR_ALL: tuple[Rule, ...] = (no_global, sizes, telling_name)
"""Tests, examples and benchmarks too."""
FOR_PRODUCT: tuple[Rule, ...] = (
    *FOR_ALL,
    imports_point_down,
    stratum_is_pure,
    own_imports_at_top,
    optional_imports_inside,
    owned_names,
    no_float_cast,
    config_is_invisible,
    init_is_empty,
)
"""megalite/, tools/ and pretrain_gpt.py."""


def modules(*parts: str) -> list[Module]:
    """The modules of these files and folders of the repository."""
    found = []
    for part in parts:
        root = ROOT / part
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            is_package = path.name == "__init__.py"
            where = (path.parent if is_package else path.with_suffix("")).relative_to(ROOT)
            found.append(
                Module(name=".".join(where.parts), text=path.read_text(encoding="utf-8"), is_package=is_package)
            )
    return found
