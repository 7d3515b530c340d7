"""Saving: every rank writes the boxes that fall to it, in parallel; the checkpoint appears whole or not at all.

The order on disk: tensors, other files, index, folders, the final name, its parent folder, then the tracker.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megalite.checkpoint.boxes import describe, uncovered, volume, whole
from megalite.checkpoint.disk import (
    begin_folder,
    make_folder,
    publish_folder,
    replace_file,
    temporary_folder,
    write_file,
)
from megalite.checkpoint.format import Index, Piece, TensorRecord, encode_index, is_optimizer
from megalite.checkpoint.leftovers import alone_in, sweep, sweep_at_start
from megalite.checkpoint.on_all_ranks import on_all_ranks
from megalite.checkpoint.place import INDEX, RELEASE, TRACKER, folder_name
from megalite.checkpoint.retention import Retention
from megalite.checkpoint.tensor_file import Entry, FileRecord, record_bytes, write_tensors
from megalite.comm.collectives import PeerLost, all_gather_object
from megalite.mesh import Group
from megalite.shard import Box, Shard

_PATIENCE = 10.0  # seconds that a save waits for another process to be done with the folder


class SaveFailed(OSError):
    """A checkpoint could not be written. Earlier ones and the tracker are as they were."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What came of a save."""

    directory: Path
    seconds: float
    removed: tuple[str, ...] = ()
    """Older checkpoints, which rank 0 has removed; the other ranks do not know of them."""
    problem: str = ""
    """What kept rank 0 from removing them."""


@dataclass(frozen=True, kw_only=True, order=True)
class Held:
    """A box that a rank holds, as the ranks tell each other."""

    nbytes: int
    name: str
    box: Box
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One box to be saved. `produce` gives its tensor when its turn comes, so that a converter holds one at a time."""

    name: str
    global_shape: tuple[int, ...]
    box: Box
    dtype: torch.dtype
    produce: Callable[[], Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.box)

    @property
    def held(self) -> Held:
        return Held(
            nbytes=volume(self.box) * self.dtype.itemsize,
            name=self.name,
            box=self.box,
            dtype=str(self.dtype).removeprefix("torch."),
            shape=self.global_shape,
        )


def check_writable(root: Path, world: Group) -> list[str]:
    """ValueError on every rank where nothing can be saved under `root`: better now than after hours of training.

    Returns what had to be done there after saves that were cut off.
    """

    def probe() -> list[str]:
        if world.rank != 0:
            return []
        make_folder(root)
        write_file(root / ".probe", b"")
        (root / ".probe").unlink()
        return sweep_at_start(root)

    def failed(problem: str) -> ValueError:
        return ValueError(f"--save {root}: nothing can be written there. {problem}")

    return on_all_ranks(probe, world, failed)[0]


def save(
    root: Path,
    iteration: int,
    shards: Sequence[Shard],
    scalars: Mapping[str, Any],
    files: Mapping[str, bytes],
    world: Group,
    retention: Retention | None = None,
) -> Saved:
    """Save what the ranks hold as `iteration` under `root`, and name it in the tracker; then remove what is too old.

    Every rank calls this with its own shards; boxes that several ranks hold are written once. `scalars` (JSON) and
    `files` (name in the folder -> content) are rank 0's. A checkpoint of the same iteration is replaced.
    Raises SaveFailed on every rank if any rank fails.
    """
    return save_parts(root, iteration, parts_of(shards), scalars, files, world, retention)


def parts_of(shards: Sequence[Shard]) -> list[Part]:
    """Shards as parts, each produced by being there."""
    return [
        Part(
            name=shard.name,
            global_shape=shard.global_shape,
            box=shard.box,
            dtype=shard.tensor.dtype,
            produce=lambda tensor=shard.tensor: tensor,  # type: ignore[misc]
        )
        for shard in shards
    ]


def save_parts(
    root: Path,
    iteration: int | None,
    parts: Sequence[Part],
    scalars: Mapping[str, Any],
    files: Mapping[str, bytes],
    world: Group,
    retention: Retention | None = None,
) -> Saved:
    """`save` for parts that are produced one by one. Iteration None is the release: weights from elsewhere."""
    mine = {part.held: part for part in parts if volume(part.box)}
    plan = assign(all_gather_object(list(mine), world))
    return write_planned(root, iteration, mine, plan, scalars, files, world, retention)


def write_planned(
    root: Path,
    iteration: int | None,
    mine: Mapping[Held, Part],
    plan: Sequence[Mapping[Held, Piece]],
    scalars: Mapping[str, Any],
    files: Mapping[str, bytes],
    world: Group,
    retention: Retention | None,
) -> Saved:
    """`save` once `assign` has said who writes what; of `mine`, only what falls to this rank need be there."""
    final, started = root / folder_name(iteration), time.perf_counter()
    removed, problem = [], ""

    def failed(problem: str) -> SaveFailed:
        return SaveFailed(f"{final} could not be saved; earlier checkpoints stay as they were. {problem}")

    def on_first(action: Callable[[], object]) -> None:
        on_all_ranks(action if world.rank == 0 else lambda: None, world, failed)

    def begin() -> None:
        make_folder(root)
        sweep(root, alone=lock.enter_context(alone_in(root, wait=_PATIENCE)))
        begun.append(begin_folder(final))

    def publish() -> None:
        _finish(temporary_folder(final), plan, {k: v for rank in written for k, v in rank.items()}, scalars, files)
        publish_folder(final)
        replace_file(root / TRACKER, (RELEASE if iteration is None else str(iteration)).encode())

    begun: list[Path] = []
    with ExitStack() as lock:
        try:
            on_first(begin)
            written = on_all_ranks(lambda: _write(temporary_folder(final), mine, plan[world.rank]), world, failed)
            on_first(publish)
        except SaveFailed:
            for folder in begun:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        except PeerLost as lost:
            late = "A rank is lost, or was later than another by more than --distributed-timeout-minutes"
            raise PeerLost(f"the save of {final} was not completed. {late}: {lost}") from lost
        seconds = time.perf_counter() - started
        if retention is not None and world.rank == 0:
            assert iteration is not None
            try:
                removed = retention.apply(root, iteration)
            except OSError as error:
                problem = f"older checkpoints could not be removed: {error}"
    return Saved(directory=final, seconds=seconds, removed=tuple(removed), problem=problem)


def assign(holdings: Sequence[Sequence[Held]]) -> list[dict[Held, Piece]]:
    """Which boxes each rank writes, and where: each box once, by the holder with the fewest bytes so far.

    A pure function of what all ranks hold, so that all come to the same answer. Checked on the way: each tensor has
    one shape and dtype, and its boxes fill it.
    """
    holders: dict[Held, list[int]] = {}
    for rank, holding in enumerate(holdings):
        for held in holding:
            holders.setdefault(held, []).append(rank)
    _check_whole(list(holders))
    load = [0] * len(holdings)
    plan: list[dict[Held, Piece]] = [{} for _ in holdings]
    keys: set[tuple[str, str]] = set()
    # Boxes without a choice first, then the big ones: what is left evens out the ranks.
    for held in sorted(holders, key=lambda held: (len(holders[held]) > 1, -held.nbytes, held)):
        rank = min(holders[held], key=lambda rank: (load[rank], rank))
        load[rank] += held.nbytes
        file = f"{'optimizer' if is_optimizer(held.name) else 'model'}-{rank:05d}.safetensors"
        # Several boxes of one tensor in one file (a flat range of it, say) need keys of their own.
        key = held.name if (file, held.name) not in keys else f"{held.name}{describe(held.box)}"
        keys.add((file, key))
        plan[rank][held] = Piece(box=held.box, file=file, key=key)
    return plan


def _check_whole(everything: Sequence[Held]) -> None:
    """Mistakes of ours in what the ranks hold: none of them must reach the disk."""
    tensors: dict[str, list[Held]] = {}
    for held in everything:
        tensors.setdefault(held.name, []).append(held)
    for name, boxes in tensors.items():
        kinds = {(held.dtype, held.shape) for held in boxes}
        assert len(kinds) == 1, f"ranks disagree about {name}: {sorted(kinds)}"
        holes = uncovered(whole(boxes[0].shape), [held.box for held in boxes])
        assert not holes, f"no rank holds {name}{describe(holes[0])}"


def _write(folder: Path, mine: Mapping[Held, Part], plan: Mapping[Held, Piece]) -> dict[str, FileRecord]:
    """Write this rank's files; their sizes and checksums."""
    by_file: dict[str, list[tuple[Entry, Part]]] = {}
    for held, piece in plan.items():
        part = mine[held]
        by_file.setdefault(piece.file, []).append((Entry(key=piece.key, dtype=part.dtype, shape=part.shape), part))
    records = {}
    for file, content in by_file.items():
        content.sort(key=lambda entry: -entry[0].dtype.itemsize)  # wide first, so that all are aligned
        records[file] = write_tensors(folder / file, [slot for slot, _ in content], (p.produce() for _, p in content))
    return records


def _finish(
    folder: Path,
    plan: Sequence[Mapping[Held, Piece]],
    records: dict[str, FileRecord],
    scalars: Mapping[str, Any],
    files: Mapping[str, bytes],
) -> None:
    """Rank 0, when all tensors are on the disk: the other files, then the index."""
    for file, record in records.items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != record.bytes:
            raise OSError(f"{file} was written, but rank 0 does not see it: all ranks must share {folder.parent}")
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, data)
        records[name] = record_bytes(data)
    pieces = {held: piece for rank in plan for held, piece in rank.items()}
    tensors: dict[str, TensorRecord] = {}
    for held in sorted(pieces, key=lambda held: (held.name, held.box)):
        earlier = tensors[held.name].pieces if held.name in tensors else ()
        tensors[held.name] = TensorRecord(dtype=held.dtype, shape=held.shape, pieces=(*earlier, pieces[held]))
    write_file(folder / INDEX, encode_index(Index(tensors=tensors, files=records, scalars=dict(scalars))))
