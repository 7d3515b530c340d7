"""Saving and loading beside bare writes and reads of the same bytes, and beside torch.save, safetensors and DCP.

All take turns in one run, and what counts is the ratio within a round. Exits with 1 where a target is missed.
"""

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor

from megalite.checkpoint.background import Background
from megalite.checkpoint.load import load
from megalite.checkpoint.place import find
from megalite.checkpoint.save import save
from megalite.mesh import Group
from megalite.shard import Box, Shard

ALONE = Group(name="world", ranks=(0,), rank=0)
RAW, OURS = "raw", "megalite"
Rates = dict[str, list[float]]
"""Of each contestant, in MB/s, round by round."""


def make_state(nbytes: int, hidden: int) -> dict[str, Tensor]:
    """fp32 params and two moments of as many layers as come near the size: big matrices and small norms."""
    state = dict[str, Tensor]()
    shapes = {
        "attention.qkv.weight": (hidden // 64, 3, 64, hidden),
        "attention.out.weight": (hidden, hidden),
        "mlp.fc1.weight": (4 * hidden, hidden),
        "mlp.fc2.weight": (hidden, 4 * hidden),
        "norm.weight": (hidden,),
        "norm.bias": (hidden,),
    }
    layers = max(1, round(nbytes / (3 * 4 * 12 * hidden**2)))
    for kind in ("", "optimizer.exp_avg.", "optimizer.exp_avg_sq."):
        for layer in range(layers):
            state |= {f"{kind}layers.{layer}.{name}": torch.rand(shape) for name, shape in shapes.items()}
    return state


def size_of(state: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in state.values())


def bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


def cut(state: dict[str, Tensor], parts: int, dim: int, which: range) -> list[Shard]:
    """The state as shards that are some of equal parts along a dimension, of which each has its own memory."""
    shards = []
    for name, tensor in state.items():
        along = min(dim, tensor.dim() - 1)
        begin = 0
        for number, part in enumerate(tensor.chunk(parts, along)):
            box: Box = tuple((begin, begin + n) if d == along else (0, n) for d, n in enumerate(part.shape))
            if number in which:
                memory = part if parts == 1 else part.contiguous()
                shards.append(Shard(name=name, global_shape=tuple(tensor.shape), box=box, tensor=memory))
            begin += part.shape[along]
    return shards


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def forget(folder: Path) -> None:
    """Have the system drop what it keeps of these files in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def peak_above(work: Callable[[], object]) -> float:
    """The memory of this process at its height while it works, above what it was before, in MB."""

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS:")
    work()
    return (status("VmHWM:") - before) / 1e3


class Contestants:
    """Each way to save a state in a folder of its own, on the disk, and to load it into a state that is there."""

    def __init__(self, folder: Path, state: dict[str, Tensor]) -> None:
        self.folder, self.state = folder, state
        self.into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def path(self, name: str) -> Path:
        return self.folder / name

    def saves(self) -> dict[str, Callable[[], object]]:
        def raw() -> None:
            with open(self.path(RAW) / "file", "wb", buffering=0) as file:
                for tensor in self.state.values():
                    view = bytes_of(tensor)
                    while view:
                        view = view[file.write(view) :]
                os.fsync(file.fileno())

        def ours() -> None:
            save(self.path(OURS), 1, cut(self.state, 1, 0, range(1)), {}, {}, ALONE)

        def torch_save() -> None:
            torch.save(self.state, self.path("torch.save") / "file")
            flush(self.path("torch.save") / "file")

        def safetensors() -> None:
            save_file(self.state, self.path("safetensors") / "file")
            flush(self.path("safetensors") / "file")

        def plain_dcp() -> None:
            dcp.save(self.state, checkpoint_id=self.path("DCP"), no_dist=True)

        return {RAW: raw, OURS: ours, "torch.save": torch_save, "safetensors": safetensors, "DCP": plain_dcp}

    def loads(self) -> dict[str, Callable[[], object]]:
        def raw() -> None:
            with open(self.path(RAW) / "file", "rb", buffering=0) as file:
                for tensor in self.into.values():
                    view = bytes_of(tensor)
                    while view:
                        view = view[file.readinto(view) :]

        def ours() -> None:
            load(find(self.path(OURS)), cut(self.into, 1, 0, range(1)), ALONE)

        def copied(read: dict[str, Tensor]) -> None:
            for name, tensor in self.into.items():
                tensor.copy_(read[name])

        return {
            RAW: raw,
            OURS: ours,
            "torch.save": lambda: copied(torch.load(self.path("torch.save") / "file", weights_only=True)),
            "safetensors": lambda: copied(load_file(self.path("safetensors") / "file")),
            "DCP": lambda: dcp.load(self.into, checkpoint_id=self.path("DCP"), no_dist=True),
        }


def timed(work: Callable[[], object], nbytes: int) -> float:
    """MB/s."""
    started = time.perf_counter()
    work()
    return nbytes / 1e6 / (time.perf_counter() - started)


def in_turns(rounds: int, works: dict[str, Callable[[], object]], nbytes: int, before: Callable[[str], None]) -> Rates:
    """The rates of all, each first in some rounds; the first round warms up and does not count."""
    rates: Rates = {name: [] for name in works}
    names = list(works)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            before(name)
            rate = timed(works[name], nbytes)
            if number:
                rates[name].append(rate)
    return rates


def ratio(rates: Rates, name: str, to: str) -> float:
    """The median over the rounds of one rate to another of the same round."""
    return statistics.median(a / b for a, b in zip(rates[name], rates[to], strict=True))


def reshards(folder: Path, state: dict[str, Tensor]) -> dict[str, Callable[[], object]]:
    """Loads of as many bytes: of a whole state that was saved whole, or by two ranks; of half of it, twice."""
    for parts, dim in ((2, 0), (2, 1)):
        save(folder / f"cut{dim}", 1, cut(state, parts, dim, range(parts)), {}, {}, ALONE)
    save(folder / "whole", 1, cut(state, 1, 0, range(1)), {}, {}, ALONE)
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    whole = cut(into, 1, 0, range(1))

    def works(source: str, shards: list[Shard]) -> Callable[[], object]:
        return lambda: load(find(folder / source), shards, ALONE)

    return {
        "plain": works("whole", whole),
        "2 parts of rows -> whole": works("cut0", whole),
        "2 parts of columns -> whole": works("cut1", whole),
        "whole -> 2 parts of rows": works("whole", cut(into, 2, 0, range(2))),
        "whole -> 2 parts of columns": works("whole", cut(into, 2, 1, range(2))),
    }


def stalls(folder: Path, state: dict[str, Tensor]) -> tuple[dict[str, Callable[[], object]], Callable[[str], None]]:
    """A copy of the state into memory that was used before, and what a save in the background holds training up; and
    what waits for that save."""
    copies = [tensor.clone() for tensor in state.values()]
    background, shards, pending = Background(ALONE, torch.device("cpu")), cut(state, 1, 0, range(1)), []

    def memcpy() -> None:
        for copy, tensor in zip(copies, state.values(), strict=True):
            copy.copy_(tensor)

    def stall() -> None:
        pending.append(background.save(folder, 1, shards, {}, {}, None))

    def settle(name: str) -> None:
        while pending:
            pending.pop().result()

    return {"memcpy": memcpy, "--async-save": stall}, settle


class Report:
    """The tables, and the targets that were missed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.missed: list[str] = []

    def tell(self, line: str) -> None:
        print(line, flush=True)
        self.lines.append(line)

    def at_least(self, target: float, what: str, value: float) -> str:
        if value < target:
            self.missed.append(f"{what}: {value:.2f}, and at least {target} is wanted")
        return f"{value:.2f}"

    def at_most(self, target: float, what: str, value: float) -> str:
        if value > target:
            self.missed.append(f"{what}: {value:.2f}, and at most {target} is wanted")
        return f"{value:.2f}"


def compare_rates(report: Report, folder: Path, state: dict[str, Tensor], rounds: int) -> None:
    """All ways to save and to load, beside the bare writes and reads."""
    all_of_them, nbytes = Contestants(folder, state), size_of(state)
    saves, loads = all_of_them.saves(), all_of_them.loads()

    def emptied(name: str) -> None:
        shutil.rmtree(all_of_them.path(name), ignore_errors=True)
        all_of_them.path(name).mkdir(parents=True)

    table = {
        "save": in_turns(rounds, saves, nbytes, emptied),
        "load, cold": in_turns(rounds, loads, nbytes, lambda name: forget(all_of_them.path(name))),
        "load, warm": in_turns(rounds, loads, nbytes, lambda name: None),
    }
    for name, tensor in state.items():
        assert torch.equal(all_of_them.into[name], tensor), name
    report.tell("|  | " + " | ".join(f"{what}, MB/s | of raw" for what in table) + " | peak of save, MB | of load |")
    report.tell("|---|" + "---:|" * (2 * len(table) + 2))
    for name in saves:
        cells = []
        for what, rates in table.items():
            of_raw = ratio(rates, name, RAW)
            told = report.at_least(0.9, what, of_raw) if name == OURS else f"{of_raw:.2f}"
            cells += [f"{statistics.median(rates[name]):,.0f}", told]
        emptied(name)
        cells += [f"{peak_above(work):,.0f}" for work in (saves[name], loads[name])]
        report.tell(f"| {name} | " + " | ".join(cells) + " |")


def compare_times(
    report: Report,
    what: str,
    works: dict[str, Callable[[], object]],
    rounds: int,
    nbytes: int,
    *,
    most: float,
    before: Callable[[str], None] = lambda name: None,
) -> None:
    """The times of works beside that of the first."""
    rates = in_turns(rounds, works, nbytes, before)
    first = next(iter(works))
    report.tell(f"\n| {what} | ms | of {first} |\n|---|---:|---:|")
    for name in works:
        times = report.at_most(most, name, 1 / ratio(rates, name, first))
        report.tell(f"| {name} | {nbytes / 1e3 / statistics.median(rates[name]):,.0f} | {times} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=600, help="size of the state")
    parser.add_argument("--hidden-size", type=int, default=1024, help="rows of the matrices, a multiple of 64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint-benchmark"), help="on the disk to be measured")
    parser.add_argument("--markdown", type=Path, help="file for the tables, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    state, report = make_state(args.megabytes * 1_000_000, args.hidden_size), Report()
    nbytes = size_of(state)
    print(f"{nbytes / 1e6:,.0f} MB in {len(state)} tensors, {args.rounds} rounds: medians, and within a round\n")
    shutil.rmtree(args.folder, ignore_errors=True)
    compare_rates(report, args.folder, state, args.rounds)
    shutil.rmtree(args.folder)
    compare_times(report, "load, warm", reshards(args.folder, state), args.rounds, nbytes, most=1.3)
    shutil.rmtree(args.folder)
    works, settle = stalls(args.folder, state)
    compare_times(report, "held up by", works, args.rounds, nbytes, most=1.2, before=settle)
    settle("")
    shutil.rmtree(args.folder)
    if args.markdown:
        args.markdown.write_text("\n".join(report.lines) + "\n")
    print("\n" + ("\n".join(report.missed) or "All targets are met."))
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
