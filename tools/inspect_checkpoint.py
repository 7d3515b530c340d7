"""Say what a checkpoint holds: its tensors with shape, dtype and place, its files, its scalars."""

import argparse
import json
import math
import sys
from pathlib import Path

from megalite.checkpoint.boxes import describe
from megalite.checkpoint.format import DTYPES, Index, find, read_index
from megalite.checkpoint.load import check_hashes


def main(arguments: list[str]) -> int:
    """Print the listing; 1 if the files are not what was saved."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("load", type=Path, help="a folder of checkpoints, or one checkpoint")
    parser.add_argument("--ckpt-step", type=int, help="the iteration instead of the latest")
    parser.add_argument("--boxes", action="store_true", help="list where each box of a tensor lies")
    parser.add_argument("--verify-integrity", action="store_true", help="compare the hash of every file")
    options = parser.parse_args(arguments)
    try:
        directory = find(options.load, options.ckpt_step)
        index = read_index(directory)
        print("\n".join([str(directory), *listing(index, boxes=options.boxes)]))
        damage = check_hashes(directory, index, sorted(index.files)) if options.verify_integrity else []
    except (ValueError, OSError) as error:
        print(f"inspect_checkpoint: {error}", file=sys.stderr)
        return 1
    if options.verify_integrity:
        print("\n".join(damage) or f"All {len(index.files)} files are as they were saved.")
    return 1 if damage else 0


def listing(index: Index, *, boxes: bool) -> list[str]:
    """The lines of a checkpoint: tensors, files, scalars."""
    width = max(map(len, index.tensors), default=0)
    lines = ["", f"{len(index.tensors)} tensors"]
    total = 0
    for name, record in index.tensors.items():
        size = math.prod(record.shape) * DTYPES[record.dtype].itemsize
        total += size
        parts = f"  {len(record.pieces)} boxes" if len(record.pieces) > 1 else ""
        lines.append(f"  {name:{width}}  {record.dtype:8}  {size:>14,} B  {list(record.shape)}{parts}")
        if boxes:
            lines += [f"    {describe(piece.box)}  {piece.file}: {piece.key}" for piece in record.pieces]
    lines += ["", f"{len(index.files)} files, tensors of {total:,} B in all"]
    lines += [f"  {record.bytes:>14,} B  {record.sha256[:16]}  {name}" for name, record in sorted(index.files.items())]
    return [*lines, "", "scalars", *json.dumps(index.scalars, indent=2).splitlines(), ""]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
