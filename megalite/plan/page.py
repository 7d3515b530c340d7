"""A page of HTML that stands alone: memory of each rank, where time goes, the schedule, and what the search tried."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape

from megalite.plan.bubble import drawn
from megalite.plan.hardware import GB
from megalite.plan.prediction import Prediction
from megalite.plan.stages import ranks_of_stages
from megalite.plan.step import stage_times
from megalite.plan.table import KINDS, SPENT, Course, prediction_lines, seconds, short
from megalite.schedule.draw import PAGE_STYLE, Picture, draw_svg

WIDTH, ROW, LEFT = 900, 22, 90
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#9c6b4e", "#9498a0")
"""Of kinds of memory, and of what time is spent on, in their order."""
MOST_ROWS = 64
SHOWN_RANKS, SHOWN_MICRO_BATCHES = 16, 32
"""A schedule is drawn if it has no more; else as one with fewer micro-batches, or not at all."""


def draw_plan(best: Prediction, tried: Sequence[Prediction], course: Course) -> str:
    """The whole page, for the layout to take and all others that fit."""
    title = f"{best.parameters / 1e9:.3g}B parameters on {best.layout.gpus} x {best.job.cluster.device.name}"
    sections = {
        "Memory of each pipeline rank": memory_chart(best),
        "Where the time of a step goes": time_chart(best),
        "The schedule": schedule_chart(best),
        "What was tried": search_chart(best, tried),
    }
    told = escape("\n".join(prediction_lines(best, course)))
    body = "".join(f"<h2>{name}</h2>{chart}" for name, chart in sections.items() if chart)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{PAGE_STYLE}</style></head><body><h1>{escape(title)}</h1><pre>{told}</pre>{body}</body></html>\n"
    )


def memory_chart(found: Prediction) -> str:
    """A bar for each rank, and the limits of the device."""
    most = max(found.peak, found.job.cluster.device.memory) * 1.02
    ranks = found.memory[:MOST_ROWS]
    bars = [
        bar
        for place, rank in enumerate(ranks)
        for bar in _stack(f"rank {place}", {n: getattr(rank, k) for k, n in KINDS.items()}, place, most, _gigabytes)
    ]
    bottom = len(ranks) * ROW
    for limit, name in ((found.job.budget, "usable"), (found.job.cluster.device.memory, "device")):
        x = LEFT + limit / most * WIDTH
        line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}" stroke="red" stroke-dasharray="4">'
        bars.append(f"{line}<title>{name}: {_gigabytes(limit)}</title></line>")
    return _svg([*bars, *_legend(KINDS.values(), bottom + 4)], bottom + 30)


def time_chart(found: Prediction) -> str:
    """One bar of all that a step is spent on."""
    parts = {name: max(0.0, getattr(found.time, key)) for key, name in SPENT.items()}
    bars = _stack("step", parts, 0, sum(parts.values()), seconds)
    return _svg([*bars, *_legend(SPENT.values(), ROW + 4)], ROW + 30)


def schedule_chart(found: Prediction) -> str:
    """The pipeline's timeline with the modelled time of each stage, of the first micro-batches."""
    layout = found.layout
    if not 1 < layout.pipeline <= SHOWN_RANKS:
        return ""
    count = min(layout.num_micro_batches, SHOWN_MICRO_BATCHES)
    job = found.job
    stages = stage_times(found.size, layout, job.practice, job.cluster, job.rates)
    timeline = drawn(layout.schedule, stages, ranks=layout.pipeline, chunks=layout.chunks, micro_batches=count)
    title = f"{layout.schedule}, {count} of {layout.num_micro_batches} micro-batches"
    return draw_svg(Picture(title=title, timeline=timeline, placement=ranks_of_stages(layout), unit=" ms"))


def search_chart(best: Prediction, tried: Sequence[Prediction]) -> str:
    """Each layout that fits as a point: memory across, tokens a second up."""
    if len(tried) < 2:
        return ""
    height, limit = 320, best.job.cluster.device.memory
    fastest = max(p.tokens / p.quick_time.total for p in tried)
    points = []
    for candidate in tried:
        x = LEFT + candidate.peak / limit * WIDTH
        y = height - candidate.tokens / candidate.quick_time.total / fastest * (height - 20)
        colour = COLOURS[0] if candidate.layout != best.layout else COLOURS[2]
        label = f"{short(candidate.layout)}: {candidate.layout}, {seconds(candidate.quick_time.total)}"
        radius = 6 if candidate.layout == best.layout else 4
        points.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}" fill-opacity="0.6">'
            f"<title>{escape(label)}</title></circle>"
        )
    axis = f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{height}" y2="{height}" stroke="gray"/>'
    words = f'<text x="{LEFT}" y="{height + 18}">memory, up to {_gigabytes(limit)}; height: tokens a second</text>'
    return _svg([axis, *points, words], height + 28)


def _stack(
    label: str, parts: Mapping[str, float], place: int, most: float, say: Callable[[float], str]
) -> Iterator[str]:
    top, left = place * ROW, float(LEFT)
    yield f'<text x="0" y="{top + 15}">{label}</text>'
    for colour, (name, value) in zip(COLOURS, parts.items(), strict=False):
        width = value / most * WIDTH
        if value > 0:
            yield (
                f'<rect x="{left:.2f}" y="{top + 2}" width="{width:.2f}" height="{ROW - 4}" fill="{colour}">'
                f"<title>{escape(name)}: {say(value)}</title></rect>"
            )
        left += width


def _legend(names: Iterable[str], top: int) -> Iterator[str]:
    left = LEFT
    for colour, name in zip(COLOURS, names, strict=False):
        yield f'<rect x="{left}" y="{top}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{left + 16}" y="{top + 11}">{escape(name)}</text>'
        left += 30 + 6 * len(name)


def _svg(parts: Sequence[str], height: float) -> str:
    width = LEFT + WIDTH + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


def _gigabytes(nbytes: float) -> str:
    return f"{nbytes / GB:.1f} GB"
