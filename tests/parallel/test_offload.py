"""Offload changes where the optimizer's states are, and nothing else; what goes to the host and back is counted."""

import errno
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from megalite.arith.buckets import length
from megalite.comm.collectives import Pending
from megalite.config.schema import Config
from megalite.mesh import ParallelMesh
from megalite.optimizer import offload
from megalite.optimizer.offload import OnDisk, OnHost
from megalite.optimizer.spill import SpillFile
from megalite.shard import Shard
from megalite.train.step import forward_backward, train_step
from tests.parallel import harness
from tests.parallel.harness import GLOBAL_BATCH, Layout
from tests.pool import Pool

STEPS = 3
KINDS: dict[str, Layout] = {
    "host": {"offload": "cpu"},
    "host, early": {"offload": "cpu", "early": 1},
    "host, a part": {"offload": "cpu", "share": 0.4},
    "disk": {"offload": "disk"},
    "disk, a part, early": {"offload": "disk", "early": 1, "share": 0.7},
}
LAYOUTS: dict[str, Layout] = {
    "one": {"bucket": 3000},
    "dp2-sharded": {"dp": 2, "sharded": 1, "overlap": 1, "bucket": 3000},
    "tp2-sp-pp2": {"tp": 2, "sp": 1, "pp": 2},
}
CASES = [
    *(("one", torch.bfloat16, "adam", kind) for kind in KINDS),
    ("one", torch.float32, "sgd", "host, early"),
    ("one", torch.float32, "adam", "disk"),
    ("dp2-sharded", torch.float32, "sgd", "host, early"),
    ("dp2-sharded", torch.bfloat16, "adam", "disk, a part, early"),
    ("tp2-sp-pp2", torch.float32, "sgd", "disk, a part, early"),
    ("tp2-sp-pp2", torch.bfloat16, "adam", "host, early"),
]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What one rank has of elements, and moved of bytes in all steps."""

    owned: int
    away: int
    to_host: int
    to_device: int
    file_size: int = 0
    read: int = 0
    written: int = 0


def trained(mesh: ParallelMesh, settings: Config, dtype: torch.dtype) -> tuple[list[float], list[Shard], Counts]:
    """Losses, all tensors and counts of some steps. Tiles are small, so that there are many."""
    with patch.object(offload, "TILE", 512):
        engine = harness.make(mesh, settings, dtype)
    losses = []
    for step in range(1, STEPS + 1):
        batch = harness.batch(mesh, settings, step)
        result = train_step(engine, batch, step=step, consumed_samples=(step - 1) * GLOBAL_BATCH)
        losses += [result.loss, result.grad_norm]
    shards = [replace(s, tensor=s.tensor.clone()) for s in (*engine.buffer.shards(), *engine.optimizer.shards())]
    owned = engine.buffer.owned[-1].local.stop
    home = engine.optimizer.homes[0]
    if not isinstance(home, OnHost):
        return losses, shards, Counts(owned=owned, away=0, to_host=0, to_device=0)
    counts = Counts(owned=owned, away=home.size, to_host=home.link.to_host_bytes, to_device=home.link.to_device_bytes)
    if isinstance(home, OnDisk):
        file = home.file
        size = file.path.stat().st_size
        counts = replace(counts, file_size=size, read=file.read_bytes, written=file.written_bytes)
    return losses, shards, counts


@pytest.mark.parametrize(("layout", "dtype", "optimizer", "kind"), CASES)
def test_the_update_is_that_of_the_device(
    pool: Pool, tmp_path: Path, layout: str, dtype: torch.dtype, optimizer: str, kind: str
) -> None:
    """Bit for bit; to the host goes each owned gradient once, and back each owned parameter once."""
    grid, where = harness.grid(LAYOUTS[layout]), KINDS[kind]
    plain = pool.run(grid, trained, harness.config("gpt2", LAYOUTS[layout], optimizer=optimizer), dtype)
    config = harness.config("gpt2", LAYOUTS[layout] | where | {"dir": str(tmp_path)}, optimizer=optimizer)
    if where["offload"] == "cpu":
        config = replace(config, offload=replace(config.offload, offload_dir=None))
    for (losses, shards, _), (ours, our_shards, counts) in zip(
        plain, pool.run(grid, trained, config, dtype), strict=True
    ):
        assert ours == losses
        whole, found = (harness.assemble([part])[0] for part in (shards, our_shards))
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name].nan_to_num(7.0), whole[name].nan_to_num(7.0)) for name in whole)
        share = where.get("share", 1.0)
        assert 0 <= counts.away - share * counts.owned < offload.ALIGNED
        assert counts.to_host == STEPS * 4 * counts.away
        assert counts.to_device == STEPS * dtype.itemsize * counts.away
        if where["offload"] == "disk":
            size = 4 * counts.away * (3 if optimizer == "adam" else 2)
            main = 2 * 4 * counts.away  # written as the run begins, and when the harness sets other weights
            assert (counts.file_size, counts.read, counts.written) == (size, STEPS * size, STEPS * size + main)


def leaving(mesh: ParallelMesh, settings: Config) -> tuple[list[int], list[int], int]:
    """Bytes that have left for the host once each further sum is in, and so expected; and those of the update."""
    engine = harness.make(mesh, settings, torch.bfloat16)
    [home] = engine.optimizer.homes
    assert isinstance(home, OnHost)
    link, policy, left = home.link, engine.buffer.policy, list[int]()

    class Told(Pending):
        def wait(self) -> Tensor:
            left.append(link.to_host_bytes)
            return super().wait()

    start = policy.start_sum
    with patch.object(policy, "start_sum", lambda grads: Told(start(grads).wait())):
        forward_backward(engine, harness.batch(mesh, settings, 1), step=1)
    owned = [4 * length(policy.own(bucket.range)) for bucket in engine.buffer.buckets]
    before = link.to_host_bytes
    engine.optimizer.step(lr=1e-2, decoupled_lr=1e-2, weight_decay=0.1)
    return [*left, before], [0, *accumulate(owned)], link.to_host_bytes - before


def test_gradients_leave_for_the_host_bucket_by_bucket(pool: Pool) -> None:
    """Each as its own sum is in, before the next is waited for; none is left for the update."""
    layout = LAYOUTS["dp2-sharded"] | KINDS["host, early"]
    for left, expected, later in pool.run(harness.grid(layout), leaving, harness.config("gpt2", layout)):
        assert left == expected and len(left) > 4
        assert later == 0


def test_a_file_that_a_killed_run_has_left_is_replaced(tmp_path: Path) -> None:
    for rank in (0, 1, 7):
        (tmp_path / f"megalite-states-{rank}.bin").write_bytes(b"old" * 100)
    file = SpillFile(tmp_path, 0, 80, ranks=2)
    assert file.replaced == 2, "its own, and that of a rank which this run has not"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["megalite-states-0.bin", "megalite-states-1.bin"]
    assert file.path.read_bytes() == bytes(80)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    first = SpillFile(tmp_path, 0, 80, ranks=1)
    with pytest.raises(ValueError, match=r"--offload-dir .* is in use by another run, which holds megalite-states-0"):
        SpillFile(tmp_path, 0, 80, ranks=1)
    first.close()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        OSError, match=r"megalite-states-0\.bin needs 1,125,899,906,842,624 bytes .* --offload-dir"
    ) as caught:
        SpillFile(tmp_path, 0, 1 << 50, ranks=1)
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_file_that_others_cut_is_noticed(tmp_path: Path) -> None:
    file = SpillFile(tmp_path, 0, 80, ranks=1)
    with file.path.open("r+b") as other:
        other.truncate(40)
    with pytest.raises(OSError, match="was cut short"):
        file.read(torch.zeros(20), 0)
