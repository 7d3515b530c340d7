"""Draw the loss curve of a run from the logs that `--log-jsonl` wrote; one colour for each log or resumption."""

import argparse
import sys
from pathlib import Path

from megalite.report import loss_curve


def main(arguments: list[str]) -> int:
    """Draw, and say where the image lies."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("logs", nargs="+", type=Path, help="JSONL logs, in the order of the training")
    parser.add_argument("--output", type=Path, required=True, help="the image: a .png, .svg or .pdf")
    parser.add_argument("--title", default="Loss", help="the line above the curves")
    parser.add_argument(
        "--level", action="append", default=[], metavar="LABEL=LOSS", help="a loss to compare with, drawn as a line"
    )
    options = parser.parse_args(arguments)
    try:
        levels = {label: float(loss) for label, _, loss in (level.rpartition("=") for level in options.level)}
        loss_curve.draw(options.logs, image=options.output, title=options.title, levels=levels)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"The loss curve is in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
