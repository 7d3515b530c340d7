"""Say what a checkpoint holds: tensors with shape, dtype and place, files, scalars; or what differs in another one.

Exits with 1 where files are not what was saved.
"""

import argparse
import json
import sys
from pathlib import Path

from megalite.checkpoint.format import Index, read_index
from megalite.checkpoint.inspection import changed_facts, changed_values, size_of, tensors, tree
from megalite.checkpoint.load import check_checksums
from megalite.checkpoint.place import find


def main(arguments: list[str]) -> int:
    """Print the listing."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("load", type=Path, help="a folder of checkpoints, or one checkpoint")
    parser.add_argument("--ckpt-step", type=int, help="the iteration instead of the latest")
    parser.add_argument("--tree", type=int, metavar="DEPTH", help="modules down to this depth instead of all tensors")
    parser.add_argument("--boxes", action="store_true", help="list where each box of a tensor lies")
    parser.add_argument("--norms", action="store_true", help="read every tensor: its norm, and what is not finite")
    parser.add_argument("--compare", type=Path, metavar="OTHER", help="only what differs in another checkpoint")
    parser.add_argument("--compare-step", type=int, help="the iteration of OTHER instead of its latest")
    parser.add_argument("--verify-integrity", action="store_true", help="compare the hash of every file")
    options = parser.parse_args(arguments)
    try:
        directory = find(options.load, options.ckpt_step)
        index = read_index(directory)
        print(directory)
        if options.compare is None:
            listing(directory, index, options)
        else:
            compare(directory, index, find(options.compare, options.compare_step), norms=options.norms)
        damage = check_checksums(directory, index, sorted(index.files)) if options.verify_integrity else []
    except (ValueError, OSError) as error:
        print(f"inspect_checkpoint: {error}", file=sys.stderr)
        return 1
    if options.verify_integrity:
        print("\n".join(damage) or f"All {len(index.files)} files are as they were saved.")
    return 1 if damage else 0


def listing(directory: Path, index: Index, options: argparse.Namespace) -> None:
    """Print tensors, files and scalars."""
    print(f"\n{len(index.tensors)} tensors")
    if options.tree is not None:
        lines = tree(index, max(options.tree, 1))
    else:
        lines = tensors(directory, index, boxes=options.boxes, norms=options.norms)
    for line in lines:
        print(line)
    total = sum(map(size_of, index.tensors.values()))
    print(f"\n{len(index.files)} files, tensors of {total:,} B in all")
    for name, record in sorted(index.files.items()):
        print(f"  {record.bytes:>14,} B  {record.checksum[:24]}  {name}")
    print(f"\nscalars\n{json.dumps(index.scalars, indent=2)}\n")


def compare(directory: Path, index: Index, other: Path, *, norms: bool) -> None:
    """Print what differs, values too with `norms`."""
    there = read_index(other)
    print(f"compared with {other}")
    lines = changed_facts(index, there)
    print("\n".join(["scalars and tensors that differ, here | there:", *lines] if lines else ["No scalar differs."]))
    if norms:
        changed = list(changed_values(directory, index, other, there))
        print("\n".join(["values that differ:", *changed] if changed else ["No value of a tensor of both differs."]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
