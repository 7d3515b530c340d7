"""Who reads what: Megatron's order, and the same global batch in every layout."""

import json
from pathlib import Path

import pytest

from megalite.data.sampler import micro_batch_samples

VALUES = json.loads((Path(__file__).parents[1] / "data/megatron_values.json").read_text())


def test_as_megatron():
    expected = VALUES["sampler_single_total20_consumed4_mbs2_dp2"]
    for rank in range(2):
        got = micro_batch_samples(4, micro_batch_size=2, num_micro_batches=4, dp_rank=rank, dp_size=2)
        assert [list(samples) for samples in got] == expected[rank]


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3])
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_every_sample_once_in_every_layout(micro_batch_size, dp_size):
    size = 24
    number = size // (micro_batch_size * dp_size)
    seen = [
        sample
        for rank in range(dp_size)
        for samples in micro_batch_samples(
            100, micro_batch_size=micro_batch_size, num_micro_batches=number, dp_rank=rank, dp_size=dp_size
        )
        for sample in samples
    ]
    assert sorted(seen) == list(range(100, 100 + size))
