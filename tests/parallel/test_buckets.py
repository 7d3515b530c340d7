"""Buckets, overlap, sharding and offload change no result."""

from dataclasses import replace

import pytest
import torch

from tests.parallel import harness
from tests.parallel.harness import Layout, soak
from tests.parallel.test_precision import DTYPES, config, curve
from tests.pool import Pool

VARIATIONS: dict[str, dict[str, Layout]] = {
    "once a step": {
        "one bucket": {},
        "small buckets": {"bucket": 1000},
        "overlapped": {"bucket": 3000, "overlap": 1},
        "sharded": {"sharded": 1},
        "sharded, small buckets": {"sharded": 1, "buckets": 40},
        "sharded, overlapped": {"sharded": 1, "bucket": 3000, "overlap": 1, "gather": 1},
        "offloaded": {"offload": "cpu", "share": 0.6},
        "sharded, on a disk": {"sharded": 1, "bucket": 3000, "overlap": 1, "offload": "disk", "early": 1},
    },
    "in every micro-batch": {
        "one bucket": {"sharded": 2},
        "a bucket each": {"sharded": 2, "bucket": 1, "overlap": 1},
        "overlapped": {"sharded": 2, "bucket": 3000, "overlap": 1, "gather": 1},
        "offloaded": {"sharded": 2, "bucket": 3000, "overlap": 1, "offload": "cpu", "early": 1, "share": 0.6},
    },
    "in two instances of the optimizer": {
        "one bucket": {"instances": 2, "sharded": 1},
        "small buckets": {"instances": 2, "sharded": 1, "bucket": 2000},
        "overlapped": {"instances": 2, "sharded": 1, "bucket": 3000, "overlap": 1, "gather": 1},
        "offloaded": {"instances": 2, "sharded": 1, "buckets": 9, "overlap": 1, "offload": "cpu", "early": 1},
    },
}
"""By when gradients are summed: sums in another order are rounded apart. The first of each is what the others equal."""
SUMMED = list(VARIATIONS)
FOUR = ("bf16", SUMMED[2])
"""What is always run on four ranks."""


@pytest.mark.parametrize(
    ("dp", "precision", "summed"),
    [
        *((2, "bf16", summed) for summed in SUMMED[:2]),
        (1, "fp32", SUMMED[1]),
        (4, *FOUR),
        (2, "fp16", SUMMED[0]),
        soak(2, "bf16", SUMMED[2]),
        *(soak(2, "fp16", summed) for summed in SUMMED[1:]),
        *(soak(2, "fp32", summed) for summed in SUMMED),
        *(soak(4, precision, summed) for precision in DTYPES for summed in SUMMED if (precision, summed) != FOUR),
    ],
)
def test_buckets_overlap_sharding_and_offload_change_no_bit(pool: Pool, dp: int, precision: str, summed: str) -> None:
    """Beyond two ranks under --deterministic-mode. The norm, whose sum has another order, may vary in its last bits.

    gloo copies what it sums. On one rank a sum is its memory, and so it is seen if that is written over too early.
    """
    found = {}
    for name, more in VARIATIONS[summed].items():
        layout = {"dp": dp, **more}
        settings = config("gpt2", precision, layout, deterministic_mode=dp > 2)
        ranks = pool.run(harness.grid(layout), curve, settings, precision, 6)
        whole, complaints = harness.assemble([shards for _, shards in ranks])
        assert not complaints
        found[name] = [result.loss for result in ranks[0][0]], whole
    losses, weights = found["one bucket"]
    for name, (others, whole) in found.items():
        assert others == losses, name
        assert all(torch.equal(whole[weight], weights[weight]) for weight in weights), name


@pytest.mark.parametrize(
    ("dp", "precision"), [(3, "fp32"), soak(3, "bf16"), soak(3, "fp16"), *(soak(4, precision) for precision in DTYPES)]
)
def test_beyond_two_ranks_sums_differ_in_their_rounding_alone(pool: Pool, dp: int, precision: str) -> None:
    """Without --deterministic-mode: gradients to 1e-6, in all buckets and both ways to sum."""
    found = {}
    for name, more in [
        (f"{name}, {summed}", more)
        for summed, variations in VARIATIONS.items()
        for name, more in variations.items()
        if dp % more.get("instances", 1) == 0
    ]:
        layout = {"dp": dp, **more}
        settings = config("gpt2", precision, layout)
        settings = replace(settings, train=replace(settings.train, global_batch_size=2 * dp))
        ranks = pool.run(harness.grid(layout), harness.gradients, settings, DTYPES[precision])
        found[name] = ranks[0][0], harness.assemble([shards for _, shards in ranks])[0]
    (loss, gradients), *others = found.values()
    assert len(others) > 8
    for other, theirs in others:
        assert other == pytest.approx(loss, rel=1e-6)
        assert max(harness.distance(theirs[name], gradients[name]) for name in gradients) < 1e-6
