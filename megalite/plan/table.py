"""Predictions as text for a terminal, and as plain data for --json."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from megalite.plan.hardware import GB
from megalite.plan.layout import Layout
from megalite.plan.memory import RankMemory
from megalite.plan.prediction import Prediction
from megalite.plan.search import Found, reason

KINDS = {
    "params": "parameters",
    "main_params": "main parameters",
    "main_grads": "main gradients",
    "moments": "moments",
    "lent": "gradients of a bucket",
    "activations": "activations",
    "recomputed": "recomputed layer",
    "logits": "logits",
    "workspace": "workspace",
}
SPENT = {
    "compute": "compute",
    "tensor": "tensor parallel",
    "messages": "messages between stages",
    "bubble": "bubble",
    "data": "data parallel, not hidden",
    "optimizer": "optimizer",
    "offload": "offload",
    "rest": "rest",
}


@dataclass(frozen=True, kw_only=True)
class Course:
    """What a whole training is told to be."""

    tokens: float | None = None
    price: float | None = None
    """Of a GPU's hour."""


def gigabytes(nbytes: float) -> str:
    """Decimal gigabytes."""
    return f"{nbytes / GB:.2f} GB"


def seconds(time: float) -> str:
    """With three digits, and a unit that suits."""
    return f"{time:.3g} s" if time >= 1 else f"{1000 * time:.3g} ms"


def prediction_lines(found: Prediction, course: Course) -> list[str]:
    """All there is to say of one layout."""
    job, time, fullest = found.job, found.time, max(found.memory, key=lambda rank: rank.total)
    shares = [(name, getattr(time, key)) for key, name in SPENT.items()]
    place = found.memory.index(fullest)
    return [
        f"layout: {found.layout}",
        f"on {found.layout.gpus} x {job.cluster.device.name}, {job.cluster.gpus_per_node} a node; "
        f"rates {job.rates.origin}",
        f"parameters (computed): {found.parameters:,}",
        f"memory of {'a' if len(found.memory) == 1 else 'the fullest'} rank"
        + (f", pipeline rank {place}" if len(found.memory) > 1 else "")
        + f" (states computed, the rest modelled): {gigabytes(fullest.total)} of {gigabytes(job.budget)} usable"
        + ("" if found.fits else f": DOES NOT FIT by {gigabytes(found.peak - job.budget)}"),
        *(
            f"  {name:26} {gigabytes(getattr(fullest, key)):>12}"
            for key, name in KINDS.items()
            if getattr(fullest, key)
        ),
        f"step time (modelled): {seconds(time.total)}",
        *(f"  {name:26} {seconds(value):>12} {value / time.total:6.1%}" for name, value in shares if value > 0),
        f"{found.tokens_per_second:,.0f} tokens/s, {found.tokens_per_second / found.layout.gpus:,.0f} a GPU",
        f"MFU {found.mfu:.1%} (model FLOPs, attention as a whole square), HFU {found.hfu:.1%} (with what is computed "
        "twice), of the dense 16-bit peak",
        *course_lines(found, course),
    ]


def course_lines(found: Prediction, course: Course) -> list[str]:
    """Days, GPU-hours and cost."""
    if course.tokens is None:
        return []
    hours = found.gpu_hours(course.tokens)
    cost = f", {hours * course.price:,.0f} at {course.price:g} a GPU-hour" if course.price else ""
    return [f"{course.tokens:.3g} tokens: {found.days(course.tokens):,.1f} days, {hours:,.0f} GPU-hours{cost}"]


def ranking(candidates: Sequence[Prediction]) -> list[str]:
    """A line for each, against the first."""
    first = candidates[0]
    width = max(len(str(candidate.layout)) for candidate in candidates)
    head = f"{'layout':{width}}  {'step':>8} {'memory':>9} {'MFU':>6}  against the first"
    return [head] + [
        f"{candidate.layout!s:{width}}  {seconds(candidate.time.total):>8} {candidate.peak / GB:>6.1f} GB "
        f"{candidate.mfu:>6.1%}  {'-' if candidate is first else reason(candidate, first)}"
        for candidate in candidates
    ]


def found_lines(found: Found, top: int, course: Course) -> list[str]:
    """What a search found: the best, the next, and what the others lack."""
    lost = "; ".join(f"{count} {why}" for why, count in found.lost.most_common())
    tried = f"{found.tried} layouts tried, {len(found.fitting)} fit" + (f" ({lost})" if lost else "")
    if not found.best:
        return [tried, *nearest_lines(found)]
    best = found.best[0]
    return [tried, "", *prediction_lines(best, course), "", *ranking(found.best[:top]), *others(found)]


def others(found: Found) -> list[str]:
    """The fastest of each other size of the tensor parallel group and of the pipeline."""
    best = found.best[0]
    lines = []
    for axis, told in (("tensor", "tp"), ("pipeline", "pp")):
        sizes = sorted({getattr(candidate.layout, axis) for candidate in found.best} - {getattr(best.layout, axis)})
        for size in sizes:
            one = next(c for c in found.best if getattr(c.layout, axis) == size)
            lines.append(f"  {told} {size}: {seconds(one.quick_time.total)} at best; {reason(one, best)}")
    return ["", "other sizes:", *lines] if lines else []


def nearest_lines(found: Found) -> list[str]:
    """Where nothing fits: what comes nearest."""
    near = found.nearest
    if near is None:
        return ["nothing fits"]
    over = near.peak - near.job.budget
    needed = near.peak / (near.job.budget / near.job.cluster.device.memory)
    return [
        f"nothing fits; nearest is {near.layout}: it needs {gigabytes(near.peak)}, {gigabytes(over)} too much",
        f"devices of {needed / GB:.0f} GB would do, or more of these, or --offload",
    ]


def plain(found: Prediction, course: Course) -> dict[str, Any]:
    """One layout for --json; bytes and seconds, each with how it is known."""
    days = (
        {}
        if course.tokens is None
        else {
            "days": found.days(course.tokens),
            "gpu_hours": found.gpu_hours(course.tokens),
            "cost": found.gpu_hours(course.tokens) * course.price if course.price else None,
        }
    )
    return {
        "layout": asdict(found.layout),
        "gpus": found.layout.gpus,
        "parameters": {"value": found.parameters, "known": "computed"},
        "memory": {
            "known": "states computed, the rest modelled",
            "peak": found.peak,
            "budget": found.job.budget,
            "fits": found.fits,
            "ranks": [_memory(rank) for rank in found.memory],
        },
        "step_seconds": {"known": "modelled", "total": found.time.total, **asdict(found.time)},
        "tokens_per_second": found.tokens_per_second,
        "mfu": {"value": found.mfu, "convention": "model FLOPs, whole square of attention, dense 16-bit peak"},
        "hfu": {"value": found.hfu, "convention": "executed FLOPs"},
        "rates": asdict(found.job.rates),
        **days,
    }


def _memory(rank: RankMemory) -> dict[str, int]:
    return {**asdict(rank), "total": rank.total}


def against(one: Prediction, other: Prediction) -> list[str]:
    """Two layouts beside each other: bytes by kind, and seconds by what they are spent on."""
    a, b = (max(p.memory, key=lambda rank: rank.total) for p in (one, other))
    lines = [f"A: {one.layout}", f"B: {other.layout}", f"{'':28} {'A':>12} {'B':>12}   B to A"]
    for key, name in KINDS.items():
        lines += _row(name, getattr(a, key), getattr(b, key), gigabytes)
    lines += _row("memory in all", a.total, b.total, gigabytes)
    lines += _row("of it states", a.states, b.states, gigabytes)
    for key, name in SPENT.items():
        lines += _row(name, getattr(one.time, key), getattr(other.time, key), seconds)
    return [*lines, *_row("step time in all", one.time.total, other.time.total, seconds)]


def _row(name: str, a: float, b: float, unit: Any) -> list[str]:
    change = f"{b / a - 1:+.0%}" if a else ""
    return [f"{name:28} {unit(a):>12} {unit(b):>12}   {change}"] if a > 0 or b > 0 else []


def short(layout: Layout) -> str:
    """A layout in a few letters, for pictures."""
    return f"t{layout.tensor} p{layout.pipeline} d{layout.data} b{layout.micro_batch_size}"
