"""The house keeps its rules, and each rule notices a breach."""

import pytest

from tests.house.rules import (
    FOR_ALL,
    FOR_PRODUCT,
    Module,
    Rule,
    config_is_invisible,
    imports_point_down,
    init_is_empty,
    modules,
    no_float_cast,
    no_global,
    optional_imports_inside,
    own_imports_at_top,
    owned_names,
    sizes,
    stratum_is_pure,
    telling_name,
)


def _name(rule: Rule) -> str:
    return rule.__name__


def _expect_none(rule: Rule, checked: list[Module]) -> None:
    breaches = [f"{module.name}: {breach}" for module in checked for breach in rule(module)]
    if breaches:
        pytest.fail("\n".join([f"{rule.__doc__}", *breaches]), pytrace=False)


@pytest.mark.parametrize("rule", FOR_PRODUCT, ids=_name)
def test_product_keeps(rule: Rule) -> None:
    checked = modules("megalite", "tools", "pretrain_gpt.py")
    assert len(checked) > 10
    _expect_none(rule, checked)


@pytest.mark.parametrize("rule", FOR_ALL, ids=_name)
def test_the_rest_keeps(rule: Rule) -> None:
    checked = modules("tests", "examples", "benchmarks", "setup.py")
    assert len(checked) > 3
    _expect_none(rule, checked)


def _function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


# rule, module, source that breaks it, the same thing said rightly
BREACHES = [
    (imports_point_down, "megalite.model.gpt", "import megalite.train.step", "import megalite.comm.collectives"),
    (imports_point_down, "megalite.model.gpt", "from megalite import train", "from megalite import comm"),
    (
        imports_point_down,
        "megalite.data.batch",
        "from megalite.checkpoint.load import load",
        "import megalite.data.blend",
    ),
    (imports_point_down, "megalite.comm.regions", "from tools.plot_loss import main", "import megalite.mesh"),
    (imports_point_down, "megalite.config.cli", "import megalite.validate", "import megalite.environment"),
    (imports_point_down, "tools.generate", "import pretrain_gpt", "import megalite.generate.sample"),
    (imports_point_down, "megalite.model.gpt", "from . import layer", "from megalite.model import layer"),
    (imports_point_down, "megalite.novel.idea", "", None),
    (imports_point_down, "megalite.train.loop", "import megalite.novel", "import megalite.observe.record"),
    (stratum_is_pure, "megalite.grid", "import torch", "import math"),
    (stratum_is_pure, "megalite.validate", "def f():\n    from torch import nn", "def f():\n    import yaml"),
    (stratum_is_pure, "megalite.config.cli", "import yaml", "import tomllib"),
    (own_imports_at_top, "megalite.train.loop", "def f():\n    import megalite.mesh", "import megalite.mesh"),
    (own_imports_at_top, "tools.generate", "class A:\n  def f(self):\n    from megalite import mesh", "import json"),
    (optional_imports_inside, "megalite.observe.x", "import matplotlib", "def f():\n    import matplotlib"),
    (
        optional_imports_inside,
        "megalite.data.x",
        "try:\n    import tokenizers\nexcept ImportError: ...",
        "import numpy",
    ),
    (no_global, "tests.unit.test_x", "def f():\n    global x", "def f():\n    def g():\n        nonlocal x\n    x = 1"),
    (owned_names, "megalite.model.gpt", "import torch.distributed as dist", "import torch.nn as nn"),
    (owned_names, "megalite.model.gpt", "from torch import distributed", "from torch import nn"),
    (
        owned_names,
        "megalite.mesh",
        "import torch\ntorch.cuda.synchronize()",
        "import torch\ntorch.distributed.barrier()",
    ),
    (owned_names, "megalite.comm.p2p", "import torch as t\nt.cuda.Stream()", "import torch as t\nt.zeros(1)"),
    (owned_names, "megalite.train.loop", "import os\nos.environ['RANK']", "import os\nos.path.join('a')"),
    (owned_names, "tools.generate", "from os import getenv", "from os import fspath"),
    (owned_names, "megalite.checkpoint.save", "import torch\ntorch.save({}, 'x')", "import json"),
    (owned_names, "megalite.checkpoint.save", "import pickle", "import pickletools"),
    (no_float_cast, "megalite.optimizer.clip", "x.norm().float()", "float(x)"),
    (config_is_invisible, "megalite.model.gpt", "from megalite.config.schema import Config", "import megalite.shard"),
    (config_is_invisible, "megalite.checkpoint.save", "from megalite import config", "import megalite.grid"),
    (config_is_invisible, "megalite.data.x", "import megalite.config.cli", "import megalite.config.split"),
    (init_is_empty, "megalite.model", "a = 1\nb = 2\n", '"""The model."""\n'),
    (sizes, "megalite.model.gpt", "\n" * 400, "\n" * 399),
    (sizes, "megalite.model.gpt", _function(66), _function(65)),
    (telling_name, "megalite.model.utils", "", None),
]


@pytest.mark.parametrize(("rule", "name", "wrong", "right"), BREACHES)
def test_rule_notices(rule: Rule, name: str, wrong: str, right: str | None) -> None:
    is_package = rule is init_is_empty
    assert list(rule(Module(name=name, text=wrong, is_package=is_package)))
    if right is not None:
        assert not list(rule(Module(name=name, text=right, is_package=is_package)))


def test_pretrain_gpt_may_import_late() -> None:
    module = Module(name="pretrain_gpt", text="def main():\n    from megalite.train.loop import train")
    assert not list(own_imports_at_top(module))


def test_every_rule_has_a_breach() -> None:
    assert {rule for rule, *_ in BREACHES} == set(FOR_PRODUCT)
