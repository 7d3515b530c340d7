"""Join .bin/.idx token files to one pair: the documents of each in order."""

import argparse
import sys
from pathlib import Path

from megalite.data.merge import merge, pairs_in


def main(arguments: list[str]) -> int:
    """Merge, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--input", required=True, nargs="+", help="prefixes of pairs, or one folder of pairs")
    parser.add_argument("--output-prefix", required=True, help="writes PREFIX.bin and PREFIX.idx")
    options = parser.parse_args(arguments)
    try:
        folder = Path(options.input[0])
        prefixes = pairs_in(folder) if len(options.input) == 1 and folder.is_dir() else options.input
        merged = merge(prefixes, options.output_prefix)
    except (ValueError, OSError) as error:
        print(f"merge_datasets: {error}", file=sys.stderr)
        return 1
    print(
        f"{options.output_prefix}.bin/.idx: {len(merged.documents) - 1} documents, "
        f"{merged.tokens} tokens of {len(prefixes)} pairs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
