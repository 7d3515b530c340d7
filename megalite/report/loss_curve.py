"""The loss curve of one run, or of the several runs that it took."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from megalite.observe import jsonl

Curve = list[tuple[int, float]]
"""(iteration, nats per token), ascending."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one process wrote: the curves between a start or a resume and the next."""

    label: str
    train: Curve
    validation: Curve


def read_parts(path: Path) -> list[Part]:
    """The parts of one log. Where the iteration falls back, the run was resumed from an earlier checkpoint."""
    parts: list[Part] = []
    last = -1
    for record in jsonl.read(path):
        iteration = record["iteration"]
        if iteration < last or not parts:
            label = path.stem if not parts else f"{path.stem}, resumed"
            parts.append(Part(label=label, train=[], validation=[]))
        last = iteration
        for key, curve in (("lm_loss", parts[-1].train), ("validation_loss", parts[-1].validation)):
            if record.get(key) is not None:
                curve.append((iteration, record[key]))
    return parts


def draw(paths: Sequence[Path], *, image: Path, title: str, levels: dict[str, float]) -> None:
    """Draw the parts of all logs over one axis, with `levels` (label to loss) as horizontal lines to compare with."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError('A loss curve needs matplotlib. Try: pip install "megalite[plot]"') from error
    parts = [part for path in paths for part in read_parts(path)]
    if not any(part.train or part.validation for part in parts):
        raise ValueError(f"No loss is logged in {', '.join(map(str, paths))}. Name a file that --log-jsonl wrote.")
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(title=title, xlabel="iteration", ylabel="loss (nats per token)")
    for number, part in enumerate(parts):
        colour = f"C{number}"
        if part.train:
            axes.plot(
                *zip(*part.train, strict=True), color=colour, linewidth=1, alpha=0.6, label=f"{part.label}: train"
            )
        if part.validation:
            axes.plot(*zip(*part.validation, strict=True), "o-", color=colour, label=f"{part.label}: validation")
    for iteration in _seams(parts):
        axes.axvline(iteration, color="grey", linestyle=":", linewidth=1)
        axes.annotate(
            "resumed", (iteration, 1), xycoords=("data", "axes fraction"), xytext=(4, -12), textcoords="offset points"
        )
    for number, (label, loss) in enumerate(levels.items()):
        axes.axhline(loss, color=f"C{len(parts) + number}", linestyle="--", linewidth=1, label=f"{label}: {loss:.2f}")
    axes.grid(alpha=0.2)
    axes.legend()
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image, dpi=120)


def _seams(parts: Sequence[Part]) -> Iterator[int]:
    """The iterations where a part takes over from the one before it: its first record follows the hand-over."""
    for before, after in pairwise(parts):
        curve = after.train or after.validation
        earlier = [iteration for iteration, _ in before.train + before.validation if curve and iteration <= curve[0][0]]
        if earlier:
            yield max(earlier)
