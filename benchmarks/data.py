"""Preparing and reading data beside the bare parts and other programs: a table of entries, measured by turns.

In each round every entry of a group runs once, so that what else the machine does falls on all alike. A ratio is formed
within a round, ours over the rival's; shown are medians over the rounds. An entry with a limit fails below it. The
compiled loop needs a C compiler.
"""

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from data_tokenize import tokenize_group, write_group
from index import blend_group, cut_group, read_group


@dataclass(frozen=True, kw_only=True)
class Group:
    """Entries that do the same work: name to a function that does it once and returns its rate."""

    title: str
    unit: str
    entries: dict[str, Callable[[], float]]
    limits: tuple[tuple[str, str, float], ...]
    """Ours, the rival, and the least ratio of their rates."""


GROUPS: dict[str, Callable[[argparse.Namespace, Path], Group]] = {
    "tokenize": lambda args, folder: Group(**tokenize_group(args, folder)),
    "write": lambda args, folder: Group(**write_group(args, folder)),
    "cut": lambda args, folder: Group(**cut_group(600, 2048, args, folder)),
    "cut-short": lambda args, folder: Group(**cut_group(60, 1024, args, folder)),
    "read": lambda args, folder: Group(**read_group(args, folder)),
    "blend": lambda args, folder: Group(**blend_group(args, folder)),
}
"""What can be measured. Each makes its group, input included, in a folder of its own."""


def measure(group: Group, rounds: int) -> bool:
    """Print a group's table; whether all limits are kept."""
    rates: dict[str, list[float]] = {name: [] for name in group.entries}
    for turn in range(rounds):
        names = list(group.entries)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            rates[name].append(group.entries[name]())
    print(f"\n{group.title}, {group.unit}: median, best of {rounds}")
    for name, found in rates.items():
        print(f"  {name:44} {statistics.median(found):12.2f} {max(found):12.2f}")
    kept = True
    for ours, theirs, limit in group.limits:
        if ours in rates and theirs in rates:
            ratio = statistics.median(a / b for a, b in zip(rates[ours], rates[theirs], strict=True))
            kept &= ratio >= limit
            print(f"  {ours} / {theirs}: {ratio:.2f} (at least {limit:.2f}{'' if ratio >= limit else ': NO'})")
    return kept


def main(arguments: Iterable[str] | None = None) -> int:
    """Measure the groups that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--input", help="JSON lines; by default the sources of Python's library")
    parser.add_argument("--megabytes", type=float, default=60, help="the input is repeated up to this size")
    parser.add_argument("--vocab-file", help="vocab.json of a byte-level BPE; by default one is trained on the input")
    parser.add_argument("--merge-file", help="its merges.txt")
    args = parser.parse_args(None if arguments is None else list(arguments))
    with tempfile.TemporaryDirectory() as folder:
        kept = []
        for name in args.groups:
            own = Path(folder) / name
            own.mkdir()
            kept.append(measure(GROUPS[name](args, own), args.rounds))
            shutil.rmtree(own)
    peak = {who: resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)}
    print(f"\npeak memory: this process {peak[resource.RUSAGE_SELF]:.0f} MiB, ", end="")
    print(f"the largest of its children {peak[resource.RUSAGE_CHILDREN]:.0f} MiB")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
