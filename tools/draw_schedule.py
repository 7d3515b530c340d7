"""Draw a pipeline schedule, or what a run made of it: `python tools/draw_schedule.py --pp 4 --microbatches 8`."""

import argparse
import sys
from pathlib import Path

from megalite.schedule.check import simulate
from megalite.schedule.draw import Picture, draw_page, draw_svg, draw_text
from megalite.schedule.schedules import SCHEDULES, fixed_chunks, make_schedule, placement
from megalite.schedule.trace import read_trace

COLUMNS = 100
"""Of a measured timeline in the terminal."""


def main(arguments: list[str]) -> int:
    """Draw as text, or into a file."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pipeline-schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--pp", type=int, default=4, help="number of pipeline ranks")
    parser.add_argument("--microbatches", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--virtual", type=int, help="stages on each rank, for interleaved (default: 2)")
    parser.add_argument("--group-size", type=int, help="micro-batches of a group, for interleaved (default: --pp)")
    parser.add_argument("--trace", type=Path, help="draw what --pipeline-trace recorded, below what was to be expected")
    parser.add_argument("--step", type=int, help="the step of the trace (default: the last)")
    parser.add_argument("--output", type=Path, help="a .svg or .html instead of text")
    options = parser.parse_args(arguments)
    try:
        if options.output and options.output.suffix not in (".svg", ".html"):
            raise ValueError(f"--output {options.output} must end in .svg or .html. Try {options.output.stem}.svg.")
        title, pictures = traced(options.trace, options.step) if options.trace else planned(options)
        write(options.output, title, pictures, columns=COLUMNS if options.trace else None)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


def planned(options: argparse.Namespace) -> tuple[str, list[Picture]]:
    """A schedule where the forward of a stage takes one unit of time, and its backward two."""
    name, pp, microbatches = options.pipeline_schedule, options.pp, options.microbatches
    if pp < 1 or microbatches < 1:
        raise ValueError(f"--pp {pp} and --microbatches {microbatches} must be 1 or more. Try --pp 4 --microbatches 8.")
    chunks = options.virtual or fixed_chunks(name) or 2
    schedule = make_schedule(
        name, num_ranks=pp, num_micro_batches=microbatches, num_chunks=chunks, group_size=options.group_size
    )
    title = f"{name}: {pp} ranks, {microbatches} micro-batches" + f", {chunks} stages a rank" * (chunks > 1)
    return title, [Picture(title=title, timeline=simulate(schedule), placement=placement(name, pp, chunks))]


def traced(path: Path, step: int | None) -> tuple[str, list[Picture]]:
    """A step as simulated with the measured mean of each op and stage, and as it was."""
    trace = read_trace(path)
    step = step if step is not None else max(trace.steps, default=0)
    pictures = [
        Picture(title=f"{kind}, step {step}", timeline=timeline, placement=trace.placement, unit=" ms")
        for kind, timeline in (
            ("predicted", trace.predicted(step)),
            ("measured", trace.timeline(step)),
        )
    ]
    return f"{trace.schedule}: {trace.num_ranks} ranks, predicted and measured", pictures


def write(output: Path | None, title: str, pictures: list[Picture], *, columns: int | None) -> None:
    """To the terminal, or to the file and say so."""
    if output is None:
        print(draw_text(*pictures, columns=columns))
        return
    drawn = draw_svg(*pictures) if output.suffix == ".svg" else draw_page(title, *pictures)
    output.write_text(drawn, encoding="utf-8")
    print("\n".join(f"{picture.title}: {picture.facts}" for picture in pictures))
    print(f"The picture is in {output}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
