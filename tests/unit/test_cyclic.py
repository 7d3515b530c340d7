"""The cyclic order: every sample once each time round, another order each time, the same on every layout."""

from itertools import product

import numpy as np
import pytest
import torch

from megalite.data.batch import micro_batches
from megalite.data.cyclic import Cyclic

SAMPLES = 10


class Numbers:
    """Sample i is i, i."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([index, index])


def drawn(first: int, last: int) -> list[int]:
    data = Cyclic(Numbers())
    return [int(data[index][0]) for index in range(first, last)]


def test_each_time_round_is_an_order_of_its_own():
    rounds = [drawn(epoch * SAMPLES, (epoch + 1) * SAMPLES) for epoch in range(3)]
    assert [sorted(order) for order in rounds] == [list(range(SAMPLES))] * 3
    assert len(set(map(tuple, rounds))) == 3
    assert rounds == [torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(e)).tolist() for e in range(3)]


def test_it_goes_on_where_it_was():
    assert drawn(7, 25) == drawn(0, 25)[7:]
    data = Cyclic(Numbers())
    assert [int(data[index][0]) for index in (23, 3, 23)] == [drawn(23, 24)[0], drawn(3, 4)[0], drawn(23, 24)[0]]


@pytest.mark.parametrize(("micro_batch_size", "dp_size"), list(product([1, 2, 4], [1, 2])))
def test_blocks_of_the_order_are_dealt_to_the_ranks_in_turn_and_a_batch_may_span_two_rounds(micro_batch_size, dp_size):
    order, block = drawn(8, 16), micro_batch_size * dp_size
    for rank in range(dp_size):
        found = micro_batches(
            Cyclic(Numbers()),
            8,
            micro_batch_size=micro_batch_size,
            num_micro_batches=8 // block,
            dp_rank=rank,
            dp_size=dp_size,
            device=torch.device("cpu"),
        )
        mine = slice(rank * micro_batch_size, (rank + 1) * micro_batch_size)
        assert [b.tokens[:, 0].tolist() for b in found] == [order[at : at + block][mine] for at in range(0, 8, block)]
