"""Pictures of timelines, simulated or measured: text, SVG, or a page."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

from megalite.schedule.action import Action, Op, Program
from megalite.schedule.check import Timeline, peak_in_flight, peak_kept

LETTERS = {Op.F: "0123456789", Op.B: "abcdefghij", Op.I: "abcdefghij", Op.W: "ABCDEFGHIJ", Op.GRAD_SYNC: "="}
"""A character for each micro-batch, by its last digit."""
MEANINGS = {
    Op.F: "forward",
    Op.B: "backward",
    Op.I: "input gradient",
    Op.W: "weight gradient",
    Op.GRAD_SYNC: "sum over replicas",
}
"""What is drawn; messages are not."""
COLOURS = {Op.F: "212,65%", Op.B: "150,50%", Op.I: "22,75%", Op.W: "285,40%", Op.GRAD_SYNC: "0,0%"}
"""Hue and saturation; later chunks are lighter."""
WIDTH, LEFT, ROW, GAP = 960, 64, 24, 0.8
"""Pixels: of the longest row of bars, of the names beside it, of a row's height, between bars."""
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:14px}"
    ".line{stroke:#888;stroke-opacity:.4}.dark,.light{text-anchor:middle;font-size:10px}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}text.dark{fill:#fff}text.light{fill:#111}"
)
PAGE_STYLE = (
    ":root{color-scheme:light dark}body{font:15px system-ui,sans-serif;max-width:1060px;margin:2em auto;padding:0 1em}"
    "h1{font-size:1.4em}h2{font-size:1.1em}svg{max-width:100%;height:auto}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #8884;font-weight:normal}th{opacity:.7}"
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A timeline and what to say of it."""

    title: str = ""
    timeline: Timeline
    placement: Sequence[int]
    """The rank of each stage."""
    unit: str = ""
    """Of the times; where nothing was measured, a stage's forward takes 1."""

    @cached_property
    def rows(self) -> list[Program]:
        """What is drawn of each rank, as it began."""
        begins, ends = self.timeline.begins, self.timeline.ends
        rows: list[Program] = [[] for _ in range(max(self.placement) + 1)]
        for action in sorted(begins, key=begins.__getitem__):
            if action.op in MEANINGS and ends[action] > begins[action]:
                rows[self.placement[action.stage]].append(action)
        return rows

    @cached_property
    def chunks(self) -> list[int]:
        """Of each stage, which of its rank's stages it is."""
        return [list(self.placement[:stage]).count(rank) for stage, rank in enumerate(self.placement)]

    @property
    def ops(self) -> list[Op]:
        """What occurs."""
        present = {action.op for row in self.rows for action in row}
        return [op for op in MEANINGS if op in present]

    @property
    def end(self) -> float:
        """When the last of what is drawn ends."""
        return max(self.timeline.ends[action] for row in self.rows for action in row)

    @property
    def facts(self) -> str:
        """Bubble, length and memory on a line."""
        peaks = [peak_in_flight(row) for row in self.rows]
        memory = f"in flight {_joined(held for held, _ in peaks)}"
        if Op.W in self.ops:
            memory += f" to I, {_joined(later for _, later in peaks)} from I to W"
            memory += f", {_joined(map(peak_kept, self.rows))} together"
        return f"bubble {self.timeline.bubble:.1%}, length {self.timeline.length:.4g}{self.unit}, {memory}"


def draw_text(*pictures: Picture, columns: int | None = None) -> str:
    """Pictures below each other, on one scale: a column is a unit of time, or as much as `columns` leave it.

    A rank has a row, or one for each of its chunks: there a blank is work on another chunk, a dot is waiting.
    """
    scale = columns / max(picture.end for picture in pictures) if columns else 1.0
    return "\n\n".join("\n".join(_text(picture, scale)) for picture in pictures)


def _text(picture: Picture, scale: float) -> Iterator[str]:
    if picture.title:
        yield picture.title
    num_chunks = max(picture.chunks) + 1
    for rank, row in enumerate(picture.rows):
        cells = [["."] * max(1, round(picture.end * scale)) for _ in range(num_chunks)]
        for action in row:
            letters = LETTERS[action.op]
            begin = round(picture.timeline.begins[action] * scale)
            for column in range(begin, max(begin + 1, round(picture.timeline.ends[action] * scale))):
                for chunk, line in enumerate(cells):
                    own = chunk == picture.chunks[action.stage]
                    line[column : column + 1] = letters[action.microbatch % len(letters)] if own else " "
        for chunk, line in enumerate(cells):
            name = f"rank {rank:<3}" if chunk == 0 else " " * 8
            yield f"{name} {f'chunk {chunk} ' if num_chunks > 1 else ''}{''.join(line).rstrip()}"
    keys = {op: "-".join(sorted({LETTERS[op][0], LETTERS[op][-1]})) for op in picture.ops}
    yield ", ".join([*(f"{key} {MEANINGS[op]}" for op, key in keys.items()), ". waiting"])
    yield picture.facts


def draw_svg(*pictures: Picture) -> str:
    """Pictures below each other, on one scale; readable on light and on dark ground."""
    scale = WIDTH / max(picture.end for picture in pictures)
    body, top = [], 0
    for picture in pictures:
        body.append(f'<g transform="translate(0 {top})">{"".join(_bars(picture, scale))}</g>')
        top += (len(picture.rows) + 3) * ROW
    width = LEFT + WIDTH + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">'
        f"<style>{STYLE}</style>{''.join(body)}</svg>\n"
    )


def _bars(picture: Picture, scale: float) -> Iterator[str]:
    yield f'<text class="title" x="0" y="16">{escape(picture.title)}</text>'
    begins, ends = picture.timeline.begins, picture.timeline.ends
    for rank, row in enumerate(picture.rows):
        top = (rank + 1) * ROW
        yield f'<text x="0" y="{top + 16}">rank {rank}</text>'
        yield f'<line class="line" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{top + 12}" y2="{top + 12}"/>'
        for action in row:
            left, width = LEFT + begins[action] * scale, (ends[action] - begins[action]) * scale
            colour, ink = _colour(action, picture)
            times = f"{begins[action]:.6g} to {ends[action]:.6g}{picture.unit}"
            box = f'x="{left:.2f}" y="{top + 2}" width="{max(width - GAP, GAP):.2f}" height="{ROW - 4}"'
            yield f'<rect {box} fill="{colour}"><title>{action}, {times}</title></rect>'
            if width > 7 * len(str(action.microbatch)) and action.microbatch >= 0:
                yield f'<text class="{ink}" x="{left + width / 2:.2f}" y="{top + 16}">{action.microbatch}</text>'
    yield from _legend(picture, (len(picture.rows) + 1) * ROW)


def _legend(picture: Picture, top: int) -> Iterator[str]:
    left = LEFT
    for op in picture.ops:
        for chunk in range(max(picture.chunks) + 1):
            colour, _ = _colour(Action(op, picture.chunks.index(chunk)), picture)
            yield f'<rect x="{left}" y="{top + 6}" width="12" height="12" fill="{colour}"/>'
            left += 14
        yield f'<text x="{left + 2}" y="{top + 16}">{MEANINGS[op]}</text>'
        left += 20 + 6 * len(MEANINGS[op])
    yield f'<text x="{LEFT}" y="{top + ROW + 12}">{escape(picture.facts)}</text>'


def _colour(action: Action, picture: Picture) -> tuple[str, str]:
    """The colour of a bar, and whether it is dark or light."""
    chunk = picture.chunks[action.stage]
    lightness = 42 + 32 * chunk / max(1, max(picture.chunks))
    return f"hsl({COLOURS[action.op]},{lightness:.0f}%)", "light" if lightness > 55 else "dark"


def draw_page(title: str, *pictures: Picture) -> str:
    """A page of HTML that stands alone: the pictures, and what each rank does in them."""
    tables = "".join(f"<h2>{escape(picture.title)}</h2>{_table(picture)}" for picture in pictures)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{PAGE_STYLE}</style></head><body><h1>{escape(title)}</h1>{draw_svg(*pictures)}{tables}</body></html>\n"
    )


def _table(picture: Picture) -> str:
    head = ("rank", "works", "waits", "in flight from F to B or I", "from I to W", "together")
    rows = ["".join(f"<th>{name}</th>" for name in head)]
    for rank, (row, busy) in enumerate(zip(picture.rows, picture.timeline.busy, strict=True)):
        share = busy / picture.timeline.length
        cells = (rank, f"{share:.1%}", f"{1 - share:.1%}", *peak_in_flight(row), peak_kept(row))
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    return f"<p>{escape(picture.facts)}</p><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _joined(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))
