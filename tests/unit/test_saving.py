"""What a save does to the disk and in which order, what is kept, what is cleared away, and saving beside training."""

import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megalite.checkpoint import disk
from megalite.checkpoint.background import Background
from megalite.checkpoint.leftovers import sweep, sweep_at_start
from megalite.checkpoint.load import read_tensor
from megalite.checkpoint.place import INDEX, TRACKER, find
from megalite.checkpoint.retention import Retention
from megalite.checkpoint.save import Saved, SaveFailed, check_writable, save
from megalite.checkpoint.tensor_file import FileRecord, write_tensors
from megalite.comm.collectives import PeerLost
from megalite.mesh import Group
from megalite.observe.record import Sink
from megalite.shard import Shard
from megalite.train.keeper import Keeper
from megalite.train.resume import Progress
from tests.recorded_disk import Event, breaches, recorded

ALONE = Group(name="world", ranks=(0,), rank=0)
CPU = torch.device("cpu")


def shard(name: str = "w", value: float = 1.0) -> Shard:
    return Shard(name=name, global_shape=(4,), box=((0, 4),), tensor=torch.full((4,), value))


def saved(root: Path, iteration: int, retention: Retention | None = None) -> Saved:
    """A small checkpoint with files in folders."""
    shards, files = [shard(), shard("optimizer.m.w")], {"config.toml": b"a = 1\n", "tokenizer/model": b"x"}
    return save(root, iteration, shards, {"iteration": iteration}, files, ALONE, retention)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# The order on disk.


def course(root: Path) -> list[list[Event]]:
    """What a first save, one that replaces it, and one that removes an older one do to the disk."""
    done = []
    for iteration in (3, 3, 4):
        with recorded(root) as events:
            saved(root, iteration, Retention(last=1))
        done.append(events)
    return done


def test_nothing_is_named_before_it_is_on_the_disk(tmp_path: Path) -> None:
    saves = course(tmp_path)
    assert [breaches(events) for events in saves] == [[], [], []]
    named = [event.path for events in saves for event in events if event.act == "rename"]
    assert [path for path in named if not path.startswith(".")] == [
        *("iter_0000003", TRACKER) * 2,
        *("iter_0000004", TRACKER),
    ]
    deleted = [event.path for events in saves for event in events if event.act == "delete"]
    assert deleted == [".iter_0000003.replaced", ".iter_0000003.removed"]


def test_each_flush_is_needed(tmp_path: Path) -> None:
    """Without any of them the record does not pass: neither the saves nor the check have one too many."""
    for events in course(tmp_path):
        flushes = [number for number, event in enumerate(events) if event.act == "fsync"]
        assert len(flushes) >= 9
        for number in flushes:
            assert breaches(events[:number] + events[number + 1 :]), events[number]
        number = next(number for number, event in enumerate(events) if event.path == TRACKER)
        early = [*events[: number - 2], events[number], *events[number - 2 : number], *events[number + 1 :]]
        assert breaches(early)


def forget(path: Path) -> None:
    pass


def unflushed(path: Path, *content: Any) -> FileRecord:
    """write_tensors, and a byte that comes after its flush."""
    record = write_tensors(path, *content)
    with path.open("ab") as file:
        file.write(b" ")
    return replace(record, bytes=record.bytes + 1)


def delete_under_its_name(final: Path) -> None:
    disk.shutil.rmtree(final)


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "files": ("megalite.checkpoint.disk.write_file", lambda path, data: path.write_bytes(data)),
    "other files": ("megalite.checkpoint.save.write_file", lambda path, data: path.write_bytes(data)),
    "tensors": ("megalite.checkpoint.save.write_tensors", unflushed),
    "folders": ("megalite.checkpoint.disk.sync_folders", forget),
    "parents": ("megalite.checkpoint.disk.sync_folder", forget),
    "removal": ("megalite.checkpoint.retention.remove_folder", delete_under_its_name),
}
"""What is left out of a save, and how."""


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_left_out_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    assert any(map(breaches, course(tmp_path)))


# Retention.


@pytest.mark.parametrize(
    ("last", "interval", "there", "stale"),
    [
        (1, None, [10, 20, 30], [10, 20]),
        (2, None, [10, 20, 30], [10]),
        (3, None, [10, 20, 30], []),
        (9, None, [10, 20, 30], []),
        (1, 20, [10, 20, 30], [10]),  # Megatron's --save-retain-interval alone
        (2, 40, [10, 20, 30, 40, 50, 60], [10, 20, 30]),
        (1, None, [10, 50, 30, 40], [10]),  # saved: 30, after going back from 50
        (1, None, [30], []),
    ],
)
def test_what_is_kept(last: int, interval: int | None, there: list[int], stale: list[int]) -> None:
    saved = 30 if 50 in there and 60 not in there else max(there)
    assert Retention(last=last, interval=interval).stale(there, saved) == stale


def test_removing_spares_what_is_not_ours(tmp_path: Path) -> None:
    for iteration in (1, 2, 3, 9):
        saved(tmp_path, iteration)
    (tmp_path / "iter_0000002" / INDEX).unlink()  # not whole: of another program, perhaps
    (tmp_path / "iter_best").mkdir()
    (tmp_path / "release").mkdir()
    elsewhere = tmp_path.parent / f"{tmp_path.name}-kept"
    os.rename(tmp_path / "iter_0000003", elsewhere)
    os.symlink(elsewhere, tmp_path / "iter_0000003")
    outcome = saved(tmp_path, 4, Retention(last=1))
    assert outcome.removed == ("iter_0000001",) and outcome.problem == ""
    kept = ["iter_0000002", "iter_0000003", "iter_0000004", "iter_0000009", "iter_best", TRACKER, "release"]
    assert names(tmp_path) == kept and find(tmp_path).name == "iter_0000004"
    (tmp_path / TRACKER).write_text("2")  # a hand has turned the tracker back
    (tmp_path / "iter_0000002" / INDEX).touch()
    assert Retention(last=1).apply(tmp_path, 4) == [] and names(tmp_path) == kept


def test_what_cannot_be_removed_is_told_and_the_save_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)

    def refused(final: Path) -> None:
        raise PermissionError(13, "Permission denied", str(final))

    monkeypatch.setattr("megalite.checkpoint.retention.remove_folder", refused)
    outcome = saved(tmp_path, 2, Retention(last=1))
    assert outcome.problem.startswith("older checkpoints could not be removed: [Errno 13]")
    assert find(tmp_path).name == "iter_0000002"


# Leftovers.


def leave(root: Path) -> None:
    """What kills at several moments leave behind, and what is nobody's business."""
    saved(root, 5)
    saved(root, 6)
    os.rename(root / "iter_0000005", root / ".iter_0000005.replaced")  # between the two renames
    for name in (".iter_0000007.saving", ".iter_0000006.replaced", ".iter_0000004.removed", ".export.saving"):
        (root / name).mkdir()
        (root / name / "model-00000.safetensors").write_bytes(b"half")
    (root / f".{TRACKER}.saving").write_text("7")


def test_leftovers_are_cleared_away_at_the_start_and_by_saves(tmp_path: Path) -> None:
    for root, clear in ((tmp_path / "a", lambda root: sweep_at_start(root)), (tmp_path / "b", lambda r: saved(r, 8))):
        leave(root)
        clear(root)
        left = {"iter_0000005", "iter_0000006", TRACKER, ".export.saving"}
        assert set(names(root)) - {"iter_0000008"} == left
        assert read_tensor(root / "iter_0000005", "w").tolist() == [1.0] * 4
    leave(tmp_path / "c")
    told = check_writable(tmp_path / "c", ALONE)
    left = [".iter_0000004.removed", ".iter_0000005.replaced", ".iter_0000006.replaced", ".iter_0000007.saving"]
    assert sorted(told) == sorted(f"cleared away {name}" for name in [*left, f".{TRACKER}.saving"])


def test_the_first_save_may_be_cut_off_before_its_folder_is_named(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / TRACKER).unlink()
    assert sweep_at_start(tmp_path) == ["named iter_0000001"]
    assert find(tmp_path).name == "iter_0000001"
    saved(tmp_path, 2)
    (tmp_path / TRACKER).unlink()  # of two, nobody knows which was meant
    assert sweep_at_start(tmp_path) == [] and not (tmp_path / TRACKER).exists()


def test_nothing_is_cleared_away_under_a_run_that_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path)
    before = names(tmp_path)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert sweep_at_start(tmp_path) == []
    monkeypatch.setattr("megalite.checkpoint.save._PATIENCE", 0.1)
    with pytest.raises(SaveFailed, match=r"Another process is saving in .*Give each run a folder of its own"):
        saved(tmp_path, 7)
    assert names(tmp_path) == before
    os.close(other)  # as its end would
    saved(tmp_path, 7)
    assert ".iter_0000006.replaced" not in names(tmp_path)


def test_without_locks_only_what_is_old_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(handle: int, operation: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", unknown)
    leave(tmp_path)
    assert sweep_at_start(tmp_path) == []
    os.utime(tmp_path / ".iter_0000004.removed", (0, 0))
    assert sweep(tmp_path, alone=False) == ["cleared away .iter_0000004.removed"]
    saved(tmp_path, 7)
    assert find(tmp_path).name == "iter_0000007"


# Saving beside training.


def test_what_changes_after_the_copy_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the memory of the copy serves the next save."""
    go = threading.Event()
    begin = disk.begin_folder
    monkeypatch.setattr("megalite.checkpoint.save.begin_folder", lambda final: (go.wait(), begin(final))[1])
    background, state = Background(ALONE, CPU), [shard(), shard("optimizer.m.w")]
    memory = set()
    for iteration in (1, 2):
        go.clear()
        for one in state:
            one.tensor.fill_(iteration)
        outcome = background.save(tmp_path, iteration, state, {"iteration": iteration}, {}, Retention(last=2))
        for one in state:
            one.tensor.fill_(-1)
        assert not outcome.done()
        go.set()
        directory = outcome.result().directory
        for one in state:
            assert read_tensor(directory, one.name).tolist() == [iteration] * 4
        memory.add(background._copies[next(iter(background._copies))].data_ptr())
    assert len(memory) == 1


def test_memory_in_any_order_is_copied(tmp_path: Path) -> None:
    square = torch.arange(6.0).view(2, 3).t()
    one = Shard(name="w", global_shape=(3, 2), box=((0, 3), (0, 2)), tensor=square)
    half = Shard(name="b", global_shape=(5,), box=((0, 5),), tensor=torch.arange(5, dtype=torch.bfloat16))
    directory = Background(ALONE, CPU).save(tmp_path, 1, [one, half], {}, {}, None).result().directory
    assert torch.equal(read_tensor(directory, "w"), square) and torch.equal(read_tensor(directory, "b"), half.tensor)


# What is told of it.


class Notes(Sink):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_a_failure_is_told_once_and_only_the_last_is_fatal() -> None:
    notes, outcomes = Notes(), [Future[Saved]() for _ in range(4)]
    keeper = Keeper(lambda progress: outcomes[progress.iteration], notes)
    keeper.save(Progress(iteration=0), is_last=False)
    keeper.tell()
    assert notes.lines == []
    outcomes[0].set_exception(SaveFailed("iter_0 could not be saved."))
    keeper.tell()
    keeper.tell()
    assert notes.lines == ["iter_0 could not be saved. Training goes on."]
    outcomes[1].set_result(Saved(directory=Path("iter_1"), seconds=1.5, removed=("iter_0",)))
    keeper.save(Progress(iteration=1), is_last=False)  # done at once
    assert notes.lines[1:] == ["saved iter_1 in 1.5 s; removed iter_0"]
    keeper.save(Progress(iteration=2), is_last=False)
    outcomes[2].set_result(Saved(directory=Path("iter_2"), seconds=1.5))
    outcomes[3].set_exception(SaveFailed("iter_3 could not be saved."))
    keeper.save(Progress(iteration=3), is_last=True)  # the one before is told first
    keeper.tell()  # the last evaluation comes between
    assert notes.lines[2:] == ["saved iter_2 in 1.5 s, of which training waited 0.0 s"]
    with pytest.raises(SaveFailed, match="iter_3"):
        keeper.wait()


def test_an_error_does_not_hide_that_the_last_save_failed() -> None:
    notes, outcome = Notes(), Future[Saved]()
    outcome.set_exception(SaveFailed("iter_1 could not be saved."))
    with pytest.raises(KeyboardInterrupt), Keeper(lambda progress: outcome, notes) as keeper:
        keeper.save(Progress(iteration=1), is_last=True)
        raise KeyboardInterrupt
    assert notes.lines == ["iter_1 could not be saved."]


@pytest.mark.parametrize(
    "error", [FloatingPointError("nan"), KeyboardInterrupt(), BrokenPipeError(), PeerLost("rank 1 is gone")]
)
def test_whatever_ends_the_run_waits_for_the_save(error: BaseException) -> None:
    """Unless a rank is lost, without which no save can be completed."""
    notes, outcome = Notes(), Future[Saved]()
    ending = threading.Timer(0.1, lambda: outcome.set_result(Saved(directory=Path("iter_1"), seconds=1.0)))
    with pytest.raises(type(error)), Keeper(lambda progress: outcome, notes) as keeper:
        keeper.save(Progress(iteration=1), is_last=True)
        ending.start()
        raise error
    assert len(notes.lines) == (0 if isinstance(error, PeerLost) else 1)
    ending.join()
