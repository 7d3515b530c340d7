"""A run saved with any option of memory or precision goes on with any other.

Another layout is the matter of test_resume.py; here two replicas stay two, and so what keeps the precision keeps every
bit, but where sums are added up in another order.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from megalite.config.memory import Memory
from megalite.config.schema import Checkpoint, Config
from megalite.mesh import ParallelMesh
from megalite.train.resume import MAIN
from tests.parallel import harness
from tests.parallel.harness import Layout, soak
from tests.parallel.test_precision import CURVE_LIMIT, DTYPES, config, go_on
from tests.pool import Pool

OPTIONS: dict[str, Layout] = {
    "replicated": {},
    "sharded": {"sharded": 1, "bucket": 3000, "overlap": 1, "gather": 1},
    "two instances": {"sharded": 1, "instances": 2, "buckets": 3},
    "host": {"offload": "cpu", "share": 0.6},
    "sharded, disk": {"sharded": 1, "offload": "disk", "early": 1},
    "recomputed": {"sharded": 1, "memory": Memory(recompute_granularity="full")},
    "gradients sharded": {"sharded": 2, "bucket": 3000, "overlap": 1},
    "gradients sharded, host": {"sharded": 2, "offload": "cpu", "early": 1},
}
STEPS = 2
ALL = [(precision, there, here) for precision in DTYPES for there, here in product(OPTIONS, OPTIONS)]
FEW = [(list(DTYPES)[number % 3], *pair) for number, pair in enumerate(pairwise([*OPTIONS, "replicated"]))]
"""Each option is left once, and come to once."""


def settings(precision: str, option: str, **kept: str) -> Config:
    layout = {"dp": 2, **OPTIONS[option]}
    found = config("gpt2", precision, layout)
    return replace(found, memory=layout.get("memory", Memory()), checkpoint=Checkpoint(**kept))


def run(pool: Pool, precision: str, option: str, steps: int = STEPS, **kept: str) -> list[tuple[float, float, float]]:
    """(Loss, norm, scale) of some steps."""
    ranks = pool.run(
        harness.grid({"dp": 2, **OPTIONS[option]}), go_on, settings(precision, option, **kept), precision, steps
    )
    assert ranks[0] == ranks[1]
    return ranks[0]


@cache
def through(pool: Pool, precision: str) -> list[float]:
    """The losses of a run that was never cut."""
    return [loss for loss, *_ in run(pool, precision, "replicated", 2 * STEPS)]


@pytest.mark.parametrize(("precision", "there", "here"), FEW + [soak(*case) for case in ALL if case not in FEW])
def test_a_run_goes_on_with_any_other_option(pool: Pool, tmp_path: Path, precision: str, there: str, here: str) -> None:
    begun = run(pool, precision, there, save=str(tmp_path))
    found = [loss for loss, *_ in begun + run(pool, precision, here, load=str(tmp_path))]
    if "gradients sharded" in there + here:
        assert found == pytest.approx(through(pool, precision), rel=CURVE_LIMIT[precision][0])
    else:
        assert found == through(pool, precision)


PRECISIONS = [pair for pair in product(DTYPES, DTYPES) if pair[0] != pair[1]]


@pytest.mark.parametrize(
    ("before", "after", "there", "here"),
    [
        ("fp32", "bf16", "host", "gradients sharded"),
        ("bf16", "fp16", "sharded", "sharded, disk"),
        ("fp16", "fp32", "gradients sharded, host", "recomputed"),
        *(soak(*pair, "sharded", option) for pair in PRECISIONS for option in OPTIONS),
        *(soak(*pair, option, "host") for pair in PRECISIONS for option in OPTIONS),
    ],
)
def test_a_run_goes_on_in_another_precision(
    pool: Pool, tmp_path: Path, before: str, after: str, there: str, here: str
) -> None:
    begun = run(pool, before, there, save=str(tmp_path))
    found = [loss for loss, *_ in begun + run(pool, after, here, load=str(tmp_path))]
    limit = max(CURVE_LIMIT[precision][0] for precision in (before, after))
    assert found == pytest.approx(through(pool, "fp32"), rel=limit)


def begun(mesh: ParallelMesh, settings: Config, precision: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights that a run begins with, and what it updates."""
    engine = harness.resume(mesh, settings, DTYPES[precision]).engine
    params = {shard.name: shard.tensor.clone() for shard in engine.buffer.shards()}
    main = {s.name.removeprefix(MAIN): s.tensor.clone() for s in engine.optimizer.shards() if s.name.startswith(MAIN)}
    return params, main or params


@pytest.mark.parametrize(("there", "here"), [("bf16", "fp32"), ("fp32", "bf16"), ("fp16", "bf16")])
def test_weights_alone_are_not_rounded_before_they_are_updated(
    pool: Pool, tmp_path: Path, there: str, here: str
) -> None:
    run(pool, there, "replicated", save=str(tmp_path))
    grid = harness.grid({"dp": 2})
    saved, _ = pool.run(grid, begun, settings(there, "replicated", load=str(tmp_path)), there)[0]
    alone = replace(settings(here, "replicated"), checkpoint=Checkpoint(load=str(tmp_path), finetune=True))
    params, main = pool.run(grid, begun, alone, here)[0]
    assert main.keys() == saved.keys() and len(main) > 10
    for name, tensor in main.items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, saved[name].float()), name
        assert torch.equal(params[name], tensor.to(params[name].dtype)), name
