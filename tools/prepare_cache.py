"""Build the index of a run's data before the run, so that no rank waits for it: give the flags of pretrain_gpt.py."""

import argparse
import sys

from megalite.train.planned import planned_notes


def main(arguments: list[str]) -> int:
    """Build it, and say what the run will take of each corpus."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="how many ranks the run will have")
    options, words = parser.parse_known_args(arguments)
    try:
        print("\n".join(planned_notes(words, ranks=options.ranks, keep=True)))
    except (ValueError, OSError) as error:
        print(f"prepare_cache: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
