"""Rank arithmetic against brute force."""

import itertools

import pytest

from megalite.config.parallel import Parallel
from megalite.grid import AXES, Grid, grid_of

SIZES = [
    {},
    {"tp": 4},
    {"tp": 2, "dp": 2},
    {"tp": 2, "dp": 3, "pp": 2},
    {"tp": 2, "cp": 2, "ep": 2, "dp": 2, "pp": 2},
]
ORDERS = [AXES, ("tp", "cp", "ep", "pp", "dp"), ("pp", "dp", "ep", "cp", "tp")]


def brute(grid: Grid) -> dict[int, dict[str, int]]:
    """Each rank's coordinates, by counting: the first axis turns fastest."""
    slowest_first = [range(grid.sizes.get(axis, 1)) for axis in reversed(grid.order)]
    coordinates = (dict(zip(reversed(grid.order), place, strict=True)) for place in itertools.product(*slowest_first))
    return dict(enumerate(coordinates))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("order", ORDERS)
def test_coordinates_and_groups(sizes, order):
    grid = Grid(sizes=sizes, order=order)
    places = brute(grid)
    assert grid.world_size == len(places)
    for rank, place in places.items():
        assert {axis: grid.coordinate(rank, axis) for axis in order} == place
    for count in range(len(order) + 1):
        for axes in itertools.combinations(order, count):
            others = [axis for axis in order if axis not in axes]
            for rank, place in places.items():
                peers = tuple(r for r, p in places.items() if all(p[axis] == place[axis] for axis in others))
                assert grid.ranks(rank, *axes) == peers
                assert grid.size(*axes) == len(peers)
            groups = grid.groups(*axes)
            assert sorted(itertools.chain(*groups)) == list(places)
            assert groups == sorted(groups)


def test_tensor_parallel_ranks_are_neighbours():
    assert Grid(sizes={"tp": 2, "dp": 2}).groups("tp") == [(0, 1), (2, 3)]
    assert Grid(sizes={"tp": 2, "dp": 2}).groups("dp") == [(0, 2), (1, 3)]


def test_neighbours_in_dp_share_an_instance_of_the_optimizer():
    grid = Grid(sizes={"tp": 2, "dp": 4}, instances=2)
    assert grid.groups("shards") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert grid.groups("instances") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert grid.groups("tp", "shards") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert grid.groups("shards", "instances") == grid.groups("dp")


def test_unknown_axis_is_refused():
    with pytest.raises(ValueError, match="unknown axes"):
        Grid(sizes={"xp": 2})


@pytest.mark.parametrize(
    ("mapping", "groups"),
    [
        (
            False,
            {"tp": [(0, 1), (2, 3), (4, 5), (6, 7)], "dp": [(0, 2), (1, 3), (4, 6), (5, 7)], "pp": [(0, 4), (1, 5)]},
        ),
        (
            True,
            {"tp": [(0, 1), (2, 3), (4, 5), (6, 7)], "dp": [(0, 4), (1, 5), (2, 6), (3, 7)], "pp": [(0, 2), (1, 3)]},
        ),
    ],
)
def test_grid_of_a_job(mapping, groups):
    grid = grid_of(
        Parallel(tensor_model_parallel_size=2, pipeline_model_parallel_size=2, use_tp_pp_dp_mapping=mapping), 8
    )
    for axis, expected in groups.items():
        assert grid.groups(axis)[: len(expected)] == expected
