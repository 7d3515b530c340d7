"""Make a JSONL corpus from the sources of Python's own standard library; nothing is downloaded."""

import argparse
import sys
from pathlib import Path

from megalite.data.preprocess.stdlib import build_stdlib_corpus


def main() -> None:
    """Parse the flags, build, and say how much there is."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", required=True, type=Path, help='JSONL file, each line {"text": ..., "path": ...}')
    args = parser.parse_args()
    try:
        built = build_stdlib_corpus(args.output)
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: error: {error}")
    print(f"{args.output}: {built.files} files, {built.bytes / 1e6:.1f} MB; {built.skipped} skipped (not UTF-8)")


if __name__ == "__main__":
    main()
