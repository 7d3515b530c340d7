"""--async-save saves what a save at once would, whatever training does meanwhile, and every exit waits for it."""

import re
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from megalite.checkpoint import save
from megalite.checkpoint.background import Background
from megalite.checkpoint.format import read_index
from megalite.checkpoint.place import find
from megalite.checkpoint.save import assign, parts_of
from megalite.comm.collectives import all_gather_object
from megalite.config.derive import derive
from megalite.config.schema import Config
from megalite.grid import Grid
from megalite.mesh import ParallelMesh, on_host
from megalite.plan.saving import copied_for_saving
from megalite.train import loop
from tests.cases.harness import LAYOUTS, in_pool
from tests.parallel import harness
from tests.parallel.harness import soak
from tests.parallel.test_checkpoint import shards_of
from tests.parallel.test_kills import MODEL
from tests.pool import Pool

RUN = MODEL.format(hidden=32, steps=8).replace("--num-layers 2", "--num-layers 4")


def train(mesh: ParallelMesh, argv: list[str]) -> tuple[int, str]:
    """A run on a disk so slow that it begins to write a checkpoint once training has made another update."""
    updates, write, step = [0], save._write, loop.train_step

    def late(folder, *content):  # type: ignore[no-untyped-def]
        iteration, until = int(re.sub(r"\D", "", folder.name)), time.monotonic() + 30
        while "--async-save" in argv and iteration in (2, 4, 6) and updates[0] <= iteration:
            assert time.monotonic() < until, "training waits for the save"
            time.sleep(0.001)
        return write(folder, *content)

    def counted(*arguments, **named):  # type: ignore[no-untyped-def]
        result = step(*arguments, **named)
        updates[0] += 1
        return result

    with patch.object(save, "_write", late), patch.object(loop, "train_step", counted):
        return in_pool(mesh, argv)


def saved(pool: Pool, layout: str, root: Path, *flags: str) -> tuple[list[dict[str, str]], str]:
    """The checksums of the files of each checkpoint, and what rank 0 says."""
    words = [RUN, LAYOUTS[layout].flags, "--save", str(root), "--save-interval 2", *flags]
    argv = [part for word in words for part in word.split()]
    ranks = pool.run(LAYOUTS[layout].grid, train, argv)
    assert all(status == 0 for status, _ in ranks), ranks
    folders = sorted(root.glob("iter_*"))
    assert find(root) == folders[-1] and not list(root.glob(".*"))
    sums = [{name: file.checksum for name, file in read_index(folder).files.items()} for folder in folders]
    return [{name: its for name, its in of.items() if name.endswith(".safetensors")} for of in sums], ranks[0][1]


@pytest.mark.parametrize("layout", ["dp2-sharded", "pp4", soak("tp2-sp"), soak("pp2-dp2"), soak("one")])
def test_the_same_is_saved(pool: Pool, tmp_path: Path, layout: str) -> None:
    at_once, _ = saved(pool, layout, tmp_path / "at-once")
    beside, said = saved(pool, layout, tmp_path / "beside", "--async-save")
    assert at_once == beside and len(beside) == 4
    waits = [float(number) for number in re.findall(r"of which training waited ([\d.]+) s", said)]
    assert len(waits) == 4


def copied(mesh: ParallelMesh, settings: Config) -> tuple[int, int]:
    """Bytes of the copy that the plan tells, and of the boxes that this rank writes."""
    engine = harness.make(mesh, settings, torch.bfloat16 if settings.train.bf16 else torch.float32)
    parts = parts_of([*engine.buffer.shards(), *engine.optimizer.shards()])
    mine = assign(all_gather_object([part.held for part in parts], mesh.world))[mesh.rank]
    told = copied_for_saving(harness.plan_of(settings, mesh), settings, derive(settings, mesh.world.size))
    return told, sum(held.nbytes for held in mine)


@pytest.mark.parametrize(
    ("layout", "bf16"),
    [
        ({"dp": 2, "tp": 2}, False),
        ({"dp": 2, "sharded": 1}, True),
        ({"pp": 2, "offload": "cpu"}, True),
        soak({"dp": 4, "sharded": 1}, False),
    ],
)
def test_the_plan_tells_the_copy(pool: Pool, layout: harness.Layout, bf16: bool) -> None:
    """But for padding, and for how evenly boxes can be dealt out."""
    for told, held in pool.run(harness.grid(layout), copied, harness.config("gpt2", layout, bf16=bf16)):
        assert told == pytest.approx(held, rel=0.1)


def fall_behind(mesh: ParallelMesh, root: Path) -> str:
    """A save in which one rank comes a second later than the others wait for it."""
    write = save._write

    def late(*content):  # type: ignore[no-untyped-def]
        time.sleep(1.5 * mesh.rank)
        return write(*content)

    background = Background(on_host(mesh.world, name="saving", timeout=timedelta(seconds=0.5)), mesh.device)
    with patch.object(save, "_write", late):
        try:
            background.save(root, 1, shards_of(mesh, filled=True), {}, {}, None).result()
        except ConnectionError as error:
            return str(error)
    return "saved"


def test_a_rank_that_falls_behind_in_a_save_is_told(pool: Pool, tmp_path: Path) -> None:
    for said in pool.run(Grid(sizes={"dp": 2}), fall_behind, tmp_path):
        assert "iter_0000001 was not completed. A rank is lost, or" in said
        assert "later than another by more than --distributed-timeout-minutes: a communication of group saving" in said
    assert not list(tmp_path.glob("iter_*"))


@pytest.mark.parametrize("flags", ["--exit-interval 5", soak("--exit-duration-in-mins 0")])
def test_an_exit_waits_for_the_last_save(pool: Pool, tmp_path: Path, flags: str) -> None:
    _, said = saved(pool, "tp2-sp", tmp_path / "saved", "--async-save", flags)
    *_, last = re.findall(r"^step +(\d+)/", said, re.MULTILINE)
    assert find(tmp_path / "saved").name == f"iter_{int(last):07d}"
    assert re.search(rf"saved \S+iter_{int(last):07d} .*\n--exit-.*: stopped", said), said
