"""Micro-batches: shapes, labels one further, and places in the global batch that no layout changes."""

import numpy as np
import pytest
import torch

from megalite.data.batch import micro_batches

SEQ = 5


class Counting:
    """Sample i is i*10, i*10 + 1, ..."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.ndarray:
        return np.arange(SEQ + 1) + index * 10


def batches(consumed, *, micro_batch_size=2, num_micro_batches=2, dp_rank=0, dp_size=1):
    return micro_batches(
        Counting(),
        consumed,
        micro_batch_size=micro_batch_size,
        num_micro_batches=num_micro_batches,
        dp_rank=dp_rank,
        dp_size=dp_size,
        device=torch.device("cpu"),
    )


def test_what_a_micro_batch_holds():
    first, second = batches(8, dp_rank=1, dp_size=2)
    assert first.tokens.tolist() == [[100, 101, 102, 103, 104], [110, 111, 112, 113, 114]]
    assert first.labels.tolist() == [[101, 102, 103, 104, 105], [111, 112, 113, 114, 115]]
    assert second.tokens[:, 0].tolist() == [140, 150]
    assert first.loss_mask.tolist() == [[1.0] * SEQ] * 2 and first.loss_mask.dtype == torch.float32
    assert first.position_ids.tolist() == [list(range(SEQ))] * 2
    assert (first.sample_ids.tolist(), second.sample_ids.tolist()) == ([2, 3], [6, 7])
    for name in ("tokens", "labels", "position_ids", "sample_ids"):
        assert getattr(first, name).dtype == torch.int64 and getattr(first, name).is_contiguous()


@pytest.mark.parametrize(("micro_batch_size", "dp_size"), [(1, 1), (4, 1), (1, 4), (2, 2), (8, 1)])
def test_the_global_batch_is_the_same_in_every_layout(micro_batch_size, dp_size):
    number = 8 // (micro_batch_size * dp_size)
    pairs = [
        (int(sample), int(tokens[0]))
        for rank in range(dp_size)
        for batch in batches(
            16, micro_batch_size=micro_batch_size, num_micro_batches=number, dp_rank=rank, dp_size=dp_size
        )
        for sample, tokens in zip(batch.sample_ids, batch.tokens, strict=True)
    ]
    assert sorted(pairs) == [(i, (16 + i) * 10) for i in range(8)]


def test_the_end_of_the_data_is_said_on_every_rank():
    assert len(batches(36)) == 2
    for rank in range(2):
        with pytest.raises(ValueError, match=r"have 40 samples, but this step takes samples 36 to 43.*--train-iters"):
            batches(36, dp_rank=rank, dp_size=2)
