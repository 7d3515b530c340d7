"""Loading: whatever cut the tensors have in the files, each shard takes the boxes that it shares with them.

Files are read in part, into the shards themselves: a rank needs the memory of its shards and little more.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from megalite.checkpoint import checksum
from megalite.checkpoint.boxes import describe, intersect, slices, uncovered, whole
from megalite.checkpoint.format import DTYPES, Index, Piece, TensorRecord, is_optimizer, read_index
from megalite.checkpoint.on_all_ranks import on_all_ranks
from megalite.checkpoint.strict import listed, unexpected, unfit
from megalite.checkpoint.tensor_file import Entry
from megalite.checkpoint.tensor_reader import TensorReader
from megalite.mesh import Group
from megalite.shard import Box, Shard

_AT_ONCE = 4  # pieces, or whole files, that are read


def load(
    directory: Path, shards: Sequence[Shard], world: Group, *, verify: bool = False, index: Index | None = None
) -> None:
    """Fill every shard's tensor, in place and in its own dtype, from a checkpoint folder (see `place.find`).

    Every rank calls this with its own shards, cut in any way. Raises ValueError on every rank as `load_strictly` does,
    and where boxes lie in no file. `verify` checks all files against their checksums first, shared out among the ranks.
    `index` spares reading it again.
    """
    known = read_index(directory) if index is None else index

    def check() -> list[str]:
        damaged = check_checksums(directory, known, sorted(known.files)[world.rank :: world.size]) if verify else []
        return [*_check(directory, known, shards), *damaged]

    load_strictly(
        directory, shards, world, held=known.tensors, check=check, fill=lambda: _fill(directory, known, shards)
    )


def load_strictly(
    directory: Path,
    shards: Sequence[Shard],
    world: Group,
    *,
    held: Collection[str],
    check: Callable[[], list[str]],
    fill: Callable[[], None],
) -> None:
    """Fill the shards of all ranks if all that is `held`, by name, and all that is asked for fit each other.

    Raises ValueError on every rank, before anything is filled, with what `check` says on any rank, `kind: detail`, and
    with names that no rank asks for, in the families (model, optimizer) of which something is asked.
    """

    def failed(problem: str) -> ValueError:
        return ValueError(f"{directory} cannot be loaded.\n{problem}")

    checked = on_all_ranks(lambda: ({shard.name for shard in shards}, check()), world, failed)
    problems = [problem for _, of_rank in checked for problem in of_rank]
    wanted = set().union(*(names for names, _ in checked))
    families = {is_optimizer(name) for name in wanted}
    problems += unexpected(wanted, (name for name in held if is_optimizer(name) in families))
    if problems:
        raise failed(listed(_with_hints(problems, no_optimizer=not any(map(is_optimizer, held)))))
    on_all_ranks(fill, world, failed)


def _with_hints(problems: Sequence[str], *, no_optimizer: bool) -> list[str]:
    """The same, and what to do without the state of the optimizer; where none of it is there, this is said once."""
    missing = [problem for problem in problems if is_optimizer(problem.removeprefix("missing: "))]
    if no_optimizer and missing:
        kept = [problem for problem in problems if problem not in missing]
        return [*kept, "missing: all state of the optimizer; --no-load-optim starts without it"]
    if any(problem.startswith("missing file: optimizer") for problem in problems):
        hint = "--no-load-optim starts without the state of the optimizer, --finetune from the weights alone"
        return [*problems, f"missing file: {hint}"]
    return list(problems)


def _check(directory: Path, index: Index, shards: Sequence[Shard]) -> list[str]:
    """What keeps these shards from being filled, each as `kind: detail`."""
    problems = unfit(shapes_of(shards), {name: record.shape for name, record in index.tensors.items()})
    files = set()
    for shard in shards:
        record = index.tensors.get(shard.name)
        if record is not None and record.shape == shard.global_shape:
            sources = _sources(record, shard.box)
            files |= {piece.file for piece, _ in sources}
            holes = uncovered(shard.box, [box for _, box in sources])
            problems += [f"not in any file: {shard.name}{describe(hole)}" for hole in holes]
    return problems + _check_sizes(directory, index, sorted(files))


def shapes_of(shards: Iterable[Shard]) -> dict[str, tuple[int, ...]]:
    """The global shapes that they are boxes of."""
    for shard in shards:
        assert shard.tensor.shape == tuple(stop - start for start, stop in shard.box), f"{shard} does not fit its box"
    return {shard.name: shard.global_shape for shard in shards}


def _check_sizes(directory: Path, index: Index, files: Iterable[str]) -> list[str]:
    """Files that are missing, cut off or grown."""
    problems = []
    for name in files:
        path, size = directory / name, index.files[name].bytes
        if not path.is_file():
            problems.append(f"missing file: {name}")
        elif path.stat().st_size != size:
            problems.append(f"damaged file: {name} has {path.stat().st_size} bytes instead of {size}")
    return problems


def check_checksums(directory: Path, index: Index, files: Iterable[str]) -> list[str]:
    """What is wrong with the content of these files, of which some are read at once."""

    def check(name: str) -> list[str]:
        problems = _check_sizes(directory, index, [name])
        if not problems and not checksum.is_of(directory / name, index.files[name].checksum):
            problems.append(f"damaged file: {name} is not the file that was saved: its checksum differs")
        return problems

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [problem for of_file in pool.map(check, files) for problem in of_file]


def _sources(record: TensorRecord, box: Box) -> list[tuple[Piece, Box]]:
    """The pieces that hold a part of a box, and which part."""
    overlaps = [(piece, intersect(piece.box, box)) for piece in record.pieces]
    return [(piece, shared) for piece, shared in overlaps if shared is not None]


def _fill(directory: Path, index: Index, shards: Iterable[Shard]) -> None:
    """Copy into every shard what the files have of it, some pieces at once, for a disk works on several requests."""
    by_file: dict[str, list[tuple[Shard, Piece, Box]]] = {}
    for shard in shards:
        for piece, box in _sources(index.tensors[shard.name], shard.box):
            by_file.setdefault(piece.file, []).append((shard, piece, box))

    def copy(source: TensorReader, shard: Shard, piece: Piece, box: Box) -> None:
        _check_stored(source.entry(piece.key), piece, index.tensors[shard.name].dtype)
        source.read(piece.key, slices(box, piece.box), shard.tensor[slices(box, shard.box)])

    for file, copies in sorted(by_file.items()):
        try:
            with TensorReader(directory / file) as source, ThreadPoolExecutor(_AT_ONCE) as pool:
                for done in [pool.submit(copy, source, *one) for one in copies]:
                    done.result()
        except ValueError as error:
            raise ValueError(f"{directory / file} is not what the index says: {error}") from error


def _check_stored(stored: Entry, piece: Piece, dtype: str) -> None:
    shape = tuple(stop - start for start, stop in piece.box)
    if stored.shape != shape or str(stored.dtype) != f"torch.{dtype}":
        raise ValueError(
            f"{piece.key} in {piece.file} is {tuple(stored.shape)} {stored.dtype}; the index says {shape} {dtype}"
        )


def read_tensor(directory: Path, name: str, index: Index | None = None) -> Tensor:
    """A whole logical tensor, in the dtype in which it was saved. `index` spares reading it again."""
    index = read_index(directory) if index is None else index
    if name not in index.tensors:
        raise ValueError(f"{directory} holds no tensor {name}")
    record = index.tensors[name]
    tensor = torch.empty(record.shape, dtype=DTYPES[record.dtype])
    shard = Shard(name=name, global_shape=record.shape, box=whole(record.shape), tensor=tensor)
    problems = _check(directory, index, [shard])
    if problems:
        raise ValueError(f"{directory} cannot be loaded.\n{listed(problems)}")
    _fill(directory, index, [shard])
    return tensor
