"""Checkpoints in one process: any cut loads any other, damage is named, and nothing half-made is ever found."""

import json
import os
import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from megalite.checkpoint import disk
from megalite.checkpoint.boxes import intersect, subtract, uncovered, volume
from megalite.checkpoint.format import read_index
from megalite.checkpoint.load import load, read_tensor
from megalite.checkpoint.place import INDEX, TRACKER, CheckpointMissing, find
from megalite.checkpoint.save import Held, SaveFailed, assign, check_writable, save
from megalite.mesh import Group
from megalite.shard import Box, Shard

ALONE = Group(name="world", ranks=(0,), rank=0)
SHAPES = {"embedding.word.weight": (13, 6), "layers.0.attention.qkv.weight": (4, 3, 2, 6), "final_norm.weight": (6,)}


def whole(shape: tuple[int, ...]) -> Box:
    return tuple((0, n) for n in shape)


def cut(box: Box, rng: random.Random, depth: int) -> list[Box]:
    """A box in random parts that fill it."""
    dims = [dim for dim, (start, stop) in enumerate(box) if stop - start > 1]
    if depth == 0 or not dims:
        return [box]
    dim = rng.choice(dims)
    at = rng.randrange(box[dim][0] + 1, box[dim][1])
    halves = [(*box[:dim], part, *box[dim + 1 :]) for part in ((box[dim][0], at), (at, box[dim][1]))]
    return [part for half in halves for part in cut(half, rng, depth - 1)]


def shards_of(tensors: dict[str, Tensor], boxes: dict[str, list[Box]]) -> list[Shard]:
    """Shards with memory of their own."""
    return [
        Shard(name=name, global_shape=tuple(t.shape), box=box, tensor=t[tuple(slice(a, b) for a, b in box)].clone())
        for name, t in tensors.items()
        for box in boxes[name]
    ]


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    made = {name: torch.randn(shape).to(dtype) for name, shape in SHAPES.items()}
    return made | {f"optimizer.exp_avg.{name}": torch.randn(shape) for name, shape in SHAPES.items()}


def in_one(of: dict[str, Tensor]) -> dict[str, list[Box]]:
    return {name: [whole(tuple(tensor.shape))] for name, tensor in of.items()}


def saved(root: Path, iteration: int = 3, run: int = 0) -> dict[str, Tensor]:
    """A checkpoint of tensors that are a function of `run`, which it returns."""
    torch.manual_seed(run)
    stored = tensors()
    save(root, iteration, shards_of(stored, in_one(stored)), {"run": run}, {"config.toml": b"[model]\n"}, ALONE)
    return stored


def loaded(folder: Path, like: dict[str, Tensor], *, verify: bool = False) -> dict[str, Tensor]:
    shards = shards_of({name: torch.full_like(t, torch.nan) for name, t in like.items()}, in_one(like))
    load(folder, shards, ALONE, verify=verify)
    return {shard.name: shard.tensor for shard in shards}


def check_whole(folder: Path) -> None:
    """The checkpoint holds exactly what its run saved."""
    torch.manual_seed(read_index(folder).scalars["run"])
    stored = tensors()
    assert all(map(torch.equal, loaded(folder, stored, verify=True).values(), stored.values()))


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(start, stop) for start, stop in box)))


def test_boxes_agree_with_sets_of_cells() -> None:
    rng = random.Random(0)

    def any_box() -> Box:
        return tuple((a := rng.randrange(5), rng.randrange(a, 6)) for _ in range(3))

    for _ in range(500):
        a, b, c = any_box(), any_box(), any_box()
        shared = intersect(a, b)
        assert (cells(shared) if shared else set()) == cells(a) & cells(b)
        left = subtract(a, b)
        assert len(left) <= 6 and sum(map(volume, left)) == len(cells(a) - cells(b))
        assert {cell for box in left for cell in cells(box)} == cells(a) - cells(b)
        assert {cell for box in uncovered(a, [b, c]) for cell in cells(box)} == cells(a) - cells(b) - cells(c)
    assert intersect((), ()) == () and uncovered((), []) == [()] and uncovered((), [()]) == []


@pytest.mark.parametrize("seed", range(30))
def test_any_cut_loads_any_other(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    stored = tensors(torch.bfloat16)
    stored["optimizer.step"] = torch.tensor(7.0, dtype=torch.float64)  # no dimensions, and a dtype of its own
    there = {name: cut(whole(tuple(t.shape)), rng, rng.randrange(4)) for name, t in stored.items()}
    folder = save(tmp_path, 12, shards_of(stored, there), {"iteration": 12}, {}, ALONE).directory
    here = {name: cut(whole(tuple(t.shape)), rng, rng.randrange(4)) for name, t in stored.items()}
    shards = shards_of({name: torch.full_like(t, torch.nan) for name, t in stored.items()}, here)
    load(folder, shards, ALONE, verify=True)
    for shard in shards:
        assert torch.equal(shard.tensor, stored[shard.name][tuple(slice(a, b) for a, b in shard.box)])
    assert all(torch.equal(read_tensor(folder, name), tensor) for name, tensor in stored.items())


def test_what_lies_on_disk(tmp_path: Path) -> None:
    stored = tensors()
    scalars = {"iteration": 123, "parallel": {"tp": 2}, "loss": 0.1}
    files = {"config.toml": b"a = 1\n", "tokenizer/tokenizer.model": b"\x00\x01"}
    folder = save(tmp_path, 123, shards_of(stored, in_one(stored)), scalars, files, ALONE).directory
    assert folder == tmp_path / "iter_0000123" == find(tmp_path) == find(folder) == find(tmp_path, step=123)
    assert (tmp_path / TRACKER).read_text() == "123"
    assert read_index(folder).scalars == scalars
    assert {name: (folder / name).read_bytes() for name in files} == files
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    inside = [INDEX, "model-00000.safetensors", "optimizer-00000.safetensors", *files]
    assert names == sorted([TRACKER, *(f"iter_0000123/{name}" for name in inside)])
    # The library's own reader opens the files, under the logical names.
    read = load_file(folder / "model-00000.safetensors") | load_file(folder / "optimizer-00000.safetensors")
    assert read.keys() == stored.keys() and all(torch.equal(read[name], stored[name]) for name in stored)
    record = read_index(folder).tensors["embedding.word.weight"]
    assert (record.dtype, record.shape, record.pieces[0].box) == ("float32", (13, 6), ((0, 13), (0, 6)))


def test_memory_in_any_order_and_other_dtypes(tmp_path: Path) -> None:
    stored = torch.randn(6, 8)
    shape, box = (8, 6), whole((8, 6))
    folder = save(
        tmp_path, 0, [Shard(name="a", global_shape=shape, box=box, tensor=stored.t())], {}, {}, ALONE
    ).directory
    assert (tmp_path / TRACKER).read_text() == "0" and find(tmp_path) == folder
    target = torch.zeros(6, 8, dtype=torch.float64).requires_grad_()
    load(folder, [Shard(name="a", global_shape=shape, box=box, tensor=target.t())], ALONE)
    assert torch.equal(target, stored.to(torch.float64))
    half = torch.zeros(shape, dtype=torch.bfloat16)
    load(folder, [Shard(name="a", global_shape=shape, box=box, tensor=half)], ALONE)
    assert torch.equal(half, stored.t().to(torch.bfloat16))


def test_empty_boxes_are_neither_saved_nor_missed(tmp_path: Path) -> None:
    empty = Shard(name="a", global_shape=(4, 2), box=((4, 4), (0, 2)), tensor=torch.empty(0, 2))
    full = Shard(name="a", global_shape=(4, 2), box=((0, 4), (0, 2)), tensor=torch.randn(4, 2))
    folder = save(tmp_path, 1, [empty, full], {}, {}, ALONE).directory
    load(folder, [empty], ALONE)
    assert len(read_index(folder).tensors["a"].pieces) == 1


def test_everything_that_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    stored = saved(tmp_path)
    wanted = {name: tensor for name, tensor in stored.items() if not name.startswith("optimizer.")}
    wanted["layers.0.mlp.fc1.bias"] = torch.zeros(3)
    wanted["embedding.word.weight"] = torch.zeros(14, 6)
    del wanted["final_norm.weight"]
    with pytest.raises(ValueError) as error:
        loaded(find(tmp_path), wanted)
    lines = str(error.value).splitlines()
    assert lines[1:] == [
        "  missing: layers.0.mlp.fc1.bias",
        "  wrong shape: embedding.word.weight is (13, 6) there, and (14, 6) is asked for",
        "  unexpected: final_norm.weight",
    ]  # and not a word of the optimizer, which was not asked for


def test_a_checkpoint_without_optimizer_names_the_flag(tmp_path: Path) -> None:
    stored = tensors()
    weights = {name: tensor for name, tensor in stored.items() if not name.startswith("optimizer.")}
    folder = save(tmp_path, 1, shards_of(weights, in_one(weights)), {}, {}, ALONE).directory
    with pytest.raises(ValueError, match="missing: all state of the optimizer; --no-load-optim"):
        loaded(folder, stored)
    assert loaded(folder, weights).keys() == weights.keys()


def _rewrite_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / INDEX).read_text())
    change(content)
    (folder / INDEX).write_text(json.dumps(content))


def _flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _cut_box(content: dict[str, Any]) -> None:
    content["tensors"]["embedding.word.weight"]["boxes"][0]["box"] = [[0, 12], [0, 6]]


def _lead_outside(content: dict[str, Any]) -> None:
    content["tensors"]["embedding.word.weight"]["boxes"][0]["file"] = "../elsewhere.safetensors"


def _other_key(content: dict[str, Any]) -> None:
    content["tensors"]["embedding.word.weight"]["boxes"][0]["key"] = "nothing"


def _other_dtype(content: dict[str, Any]) -> None:
    content["tensors"]["embedding.word.weight"]["dtype"] = "float64"


def _other_checksum(content: dict[str, Any]) -> None:
    content["files"][MODEL]["checksum"] = "md5:00"


def _lie_about_header(folder: Path) -> None:
    path = folder / "model-00000.safetensors"
    data = path.read_bytes()
    path.write_bytes((1 << 40).to_bytes(8, "little") + data[8:])


MODEL = "model-00000.safetensors"
DAMAGE: list[tuple[str, Callable[[Path], object], str, bool]] = [
    # what, how, what the error says, whether only `verify` sees it
    ("no index", lambda d: (d / INDEX).unlink(), "not a complete checkpoint", False),
    ("cut index", lambda d: (d / INDEX).write_text((d / INDEX).read_text()[:99]), "index.json is damaged", False),
    ("nested index", lambda d: (d / INDEX).write_text("[" * 100_000), "index.json is damaged", False),
    ("other format", lambda d: _rewrite_index(d, lambda c: c.update(format=9)), "its format is 9", False),
    ("other checksum", lambda d: _rewrite_index(d, _other_checksum), "checksums are crc32 or sha256, not 'md5'", False),
    ("leads outside", lambda d: _rewrite_index(d, _lead_outside), "leads out of the folder", False),
    ("no file", lambda d: (d / MODEL).unlink(), f"missing file: {MODEL}", False),
    ("cut file", lambda d: os.truncate(d / MODEL, 300), f"damaged file: {MODEL} has 300 bytes", False),
    ("lying header", _lie_about_header, f"{MODEL} is not what the index says", False),
    ("hole", lambda d: _rewrite_index(d, _cut_box), r"not in any file: embedding.word.weight\[12:13, 0:6\]", False),
    ("no such key", lambda d: _rewrite_index(d, _other_key), "is not what the index says.*nothing", False),
    ("lying dtype", lambda d: _rewrite_index(d, _other_dtype), "the index says .13, 6. float64", False),
    ("flipped bit", lambda d: _flip_last_byte(d / MODEL), f"damaged file: {MODEL} is not the file", True),
    ("edited config", lambda d: (d / "config.toml").write_bytes(b"[MODEL]\n"), "damaged file: config.toml", True),
]


@pytest.mark.parametrize(("damage", "message", "hidden"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], object], message: str, hidden: bool) -> None:
    stored = saved(tmp_path)
    folder = tmp_path / "iter_0000003"
    loaded(folder, stored, verify=True)
    damage(folder)
    if hidden:
        loaded(folder, stored)
    with pytest.raises(ValueError, match=message):
        loaded(folder, stored, verify=hidden)


def test_nothing_to_find(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="does not exist"):
        find(tmp_path / "nowhere")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CheckpointMissing, match=r"has no latest_checkpointed_iteration.txt.*holds: notes.txt"):
        find(tmp_path)
    saved(tmp_path)
    with pytest.raises(ValueError, match=r"iteration 4 was asked for.*holds: iter_0000003"):
        find(tmp_path, step=4)
    (tmp_path / TRACKER).write_text("soon")
    with pytest.raises(ValueError, match="must hold an iteration or `release`, not 'soon'"):
        find(tmp_path)
    (tmp_path / TRACKER).write_text("7\n")
    with pytest.raises(ValueError, match="names iter_0000007, but"):
        find(tmp_path)
    (tmp_path / TRACKER).unlink()
    assert find(tmp_path).name == "iter_0000003", "a first save that was cut off before it was named"
    shutil.copytree(tmp_path / "iter_0000003", tmp_path / "iter_0000009")
    with pytest.raises(ValueError, match=r"holds iter_0000003, iter_0000009, but latest.* is gone. Name one with --ck"):
        find(tmp_path)


def test_the_tracker_decides_not_the_highest_number(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    shutil.copytree(tmp_path / "iter_0000003", tmp_path / "iter_0000009")
    assert find(tmp_path).name == "iter_0000003"


class Cut(BaseException):
    """The end of a process, as far as the code under test can tell."""


@pytest.mark.parametrize("replacing", [False, True])
def test_cut_off_anywhere_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacing: bool
) -> None:
    """Stop before each fsync, rename and deletion in turn: what is found is whole, and a later save works."""
    calls = {"left": -1}

    def interrupting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls["left"] -= 1
            if calls["left"] == -1:
                raise Cut
            return function(*args, **kwargs)

        return call

    # disk and tensor_file look these up in the modules os and shutil at every call.
    for module, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (disk.shutil, "rmtree")):
        monkeypatch.setattr(module, name, interrupting(getattr(module, name)))
    for stop in range(50):
        root = tmp_path / str(stop)
        saved(root, 3, run=1)
        calls["left"] = stop
        try:
            saved(root, 3 if replacing else 4, run=2)
        except Cut:
            calls["left"] = 4
            with pytest.raises(Cut):
                saved(root, 3 if replacing else 4, run=2)  # and again, early
            calls["left"] = -1
            check_whole(find(root))
            saved(root, 3 if replacing else 4, run=3)
            check_whole(find(root))
            assert read_index(find(root)).scalars["run"] == 3
            assert not [path.name for path in root.iterdir() if path.name.startswith(".")]
        else:
            assert stop > 8
            return
    raise AssertionError("a save has more than 50 steps")


def test_a_failed_save_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = saved(tmp_path, 3)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SaveFailed, match=r"iter_0000004 could not be saved; earlier.*No space left on device"):
            saved(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iter_0000003", TRACKER]
    assert all(map(torch.equal, loaded(find(tmp_path), first).values(), first.values()))
    (tmp_path / "file").touch()
    with pytest.raises(SaveFailed, match="file/iter_0000003 could not be saved"):
        saved(tmp_path / "file")


def held(
    name: str, nbytes: int, dtype: str = "float32", *, box: Box = ((0, 4),), shape: tuple[int, ...] = (4,)
) -> Held:
    return Held(nbytes=nbytes, name=name, box=box, dtype=dtype, shape=shape)


def test_replicas_are_written_once_and_evenly() -> None:
    shared = [held(f"w{i}", 100 + i) for i in range(40)]
    own = [[held("own", 900, box=((rank, rank + 1),))] for rank in range(4)]
    plan = assign([shared + own[0], own[1] + shared, shared + own[2], own[3]])
    written = [piece_of for rank in plan for piece_of in rank]
    assert len(written) == len(set(written)) == 44
    loads = [sum(one.nbytes for one in rank) for rank in plan]
    assert loads[3] == 900 and max(loads[:3]) - min(loads[:3]) < 150
    assert plan == assign([shared[::-1] + own[0], own[1] + shared, own[2] + shared, own[3]])


@pytest.mark.parametrize(
    ("holdings", "message"),
    [
        ([[held("w", 4)], [held("w", 4, "bfloat16")]], "ranks disagree about w"),
        ([[held("w", 3, box=((0, 3),))]], r"no rank holds w\[3:4\]"),
    ],
)
def test_a_wrong_set_of_shards_is_never_written(holdings: list[list[Held]], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assign(holdings)


def test_a_place_where_nothing_can_be_saved_is_known_at_the_start(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder", ALONE)
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"--save .*file: nothing can be written there"):
        check_writable(tmp_path / "file", ALONE)
