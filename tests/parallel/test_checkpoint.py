"""Checkpoints among ranks: any layout loads any other, replicas are written once, one rank's failure is everyone's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megalite.checkpoint.format import read_index
from megalite.checkpoint.load import load, read_tensor
from megalite.checkpoint.place import TRACKER, find
from megalite.checkpoint.save import save
from megalite.grid import Grid
from megalite.mesh import ParallelMesh
from megalite.shard import Box, Shard
from tests.parallel.harness import soak

SHAPES = {
    "embedding.word.weight": ((10, 3), 0),
    "layers.0.mlp.fc1.weight": ((2, 8, 3), 1),
    "layers.0.mlp.fc2.weight": ((3, 8), 1),
    "final_norm.weight": ((3,), None),
    "optimizer.exp_avg.layers.0.mlp.fc1.weight": ((2, 8, 3), 1),
}
"""Global shapes, and the dimension that tp splits."""
LAYOUTS = [{"tp": 1}, {"tp": 2}, {"dp": 2}, {"dp": 3}, {"tp": 4}, {"tp": 2, "dp": 2}]
FEW = [{"dp": 3}, {"tp": 2, "dp": 2}]
"""Those whose checkpoints `make test` takes to all layouts; test_resume has chains of runs through them."""


def whole_tensor(name: str) -> Tensor:
    """What the tensor of this name holds, on every rank."""
    shape, _ = SHAPES[name]
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1000 * len(name)


def _box(mesh: ParallelMesh, name: str) -> Box:
    shape, split = SHAPES[name]
    size, rank = mesh.tp.size, mesh.tp.rank
    return tuple((n * rank // size, n * (rank + 1) // size) if d == split else (0, n) for d, n in enumerate(shape))


def shards_of(mesh: ParallelMesh, *, filled: bool) -> list[Shard]:
    """This rank's shards, tp splitting them and dp holding replicas."""
    shards = []
    for name, (shape, _) in SHAPES.items():
        box = _box(mesh, name)
        part = whole_tensor(name)[tuple(slice(a, b) for a, b in box)].clone()
        tensor = part if filled else torch.full_like(part, torch.nan)
        shards.append(Shard(name=name, global_shape=shape, box=box, tensor=tensor))
    return shards


def _save(mesh: ParallelMesh, root: Path) -> None:
    save(root, 5, shards_of(mesh, filled=True), {"iteration": 5}, {"config.toml": b"x"}, mesh.world)


def _load(mesh: ParallelMesh, root: Path) -> bool:
    shards, expected = shards_of(mesh, filled=False), shards_of(mesh, filled=True)
    load(find(root), shards, mesh.world, verify=True)
    return all(torch.equal(a.tensor, b.tensor) for a, b in zip(shards, expected, strict=True))


@pytest.mark.parametrize("there", [*FEW, *(soak(layout) for layout in LAYOUTS if layout not in FEW)], ids=str)
def test_any_layout_loads_any_other(pool: Any, tmp_path: Path, there: dict[str, int]) -> None:
    pool.run(Grid(sizes=there), _save, tmp_path)
    index = read_index(find(tmp_path))
    for name, record in index.tensors.items():
        split = there.get("tp", 1) if SHAPES[name][1] is not None else 1
        assert len(record.pieces) == split
        assert torch.equal(read_tensor(find(tmp_path), name), whole_tensor(name))
    writers = {file.partition("-")[2] for file in index.files if file.endswith(".safetensors")}
    assert len(writers) == Grid(sizes=there).world_size  # each rank writes its share
    for here in LAYOUTS:
        assert all(pool.run(Grid(sizes=here), _load, tmp_path)), here


def _fail_to_save(mesh: ParallelMesh, root: Path) -> str:
    shards = shards_of(mesh, filled=True)
    if mesh.rank == 1:  # memory that cannot be written
        shards = [
            Shard(name=s.name, global_shape=s.global_shape, box=s.box, tensor=s.tensor.to("meta")) for s in shards
        ]
    try:
        save(root, 6, shards, {}, {}, mesh.world)
    except OSError as error:
        return str(error)
    return "saved"


def test_a_rank_that_cannot_write_stops_all_and_harms_nothing(pool: Any, tmp_path: Path) -> None:
    grid = Grid(sizes={"tp": 2})
    pool.run(grid, _save, tmp_path)
    errors = pool.run(grid, _fail_to_save, tmp_path)
    assert len(set(errors)) == 1
    assert "iter_0000006 could not be saved" in errors[0] and "rank 1: NotImplementedError" in errors[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_0000005", TRACKER]
    assert all(pool.run(grid, _load, tmp_path))


def _load_other_names(mesh: ParallelMesh, root: Path) -> str:
    """Rank 0 asks for all but one tensor; rank 1 for that one in another shape, and for one that nobody saved."""
    shards = shards_of(mesh, filled=False)
    if mesh.rank == 0:
        shards = shards[1:]
    else:
        empty = torch.empty(7, 3)
        shards = [
            Shard(name=name, global_shape=(7, 3), box=((0, 7), (0, 3)), tensor=empty)
            for name in (shards[0].name, "head.weight")
        ]
    try:
        load(find(root), shards, mesh.world)
    except ValueError as error:
        return str(error)
    return "loaded"


def test_all_ranks_hear_of_the_problems_of_each(pool: Any, tmp_path: Path) -> None:
    pool.run(Grid(sizes={"tp": 1}), _save, tmp_path)
    errors = pool.run(Grid(sizes={"tp": 2}), _load_other_names, tmp_path)
    assert len(set(errors)) == 1
    assert errors[0].splitlines()[1:] == [
        "  missing: head.weight",
        "  wrong shape: embedding.word.weight is (10, 3) there, and (7, 3) is asked for",
    ]
