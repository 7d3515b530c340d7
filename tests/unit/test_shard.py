"""Boxes: a range of a tensor's memory as boxes of the global tensor."""

from itertools import product

import pytest
import torch

from megalite.shard import boxes_of_range


@pytest.mark.parametrize(
    "box",
    [
        (),
        ((2, 9),),
        ((0, 1), (3, 4)),
        ((1, 4), (0, 5)),
        ((0, 3), (2, 4), (5, 9)),
        ((3, 5), (0, 1), (1, 4), (0, 3)),
    ],
)
def test_every_range_is_at_most_2n_minus_1_boxes(box: tuple[tuple[int, int], ...]) -> None:
    shape = [stop - start for start, stop in box]
    memory = torch.arange(torch.Size(shape).numel()).view(shape)
    world = torch.full([stop for _, stop in box], -1)
    world[tuple(slice(*bounds) for bounds in box)] = memory
    for start, stop in product(range(memory.numel() + 1), repeat=2):
        found = boxes_of_range(box, start, stop)
        assert len(found) <= max(2 * len(box) - 1, 1)
        read = [world[tuple(slice(*bounds) for bounds in part)].reshape(-1) for part, _ in found]
        assert [number for numbers in read for number in numbers.tolist()] == list(range(start, stop))
        for numbers, (_, where) in zip(read, found, strict=True):
            assert numbers.tolist() == list(range(where.start, where.stop))
