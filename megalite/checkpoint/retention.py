"""Which checkpoints are kept as new ones come."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megalite.checkpoint.disk import remove_folder
from megalite.checkpoint.place import INDEX, TRACKER


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Keep the last ones, and those whose iteration is a multiple of `interval`."""

    last: int
    interval: int | None = None

    def stale(self, iterations: Sequence[int], saved: int) -> list[int]:
        """Which of these go, now that `saved` is written.

        Higher ones stay: they are of a course that this run does not follow, and of whose worth it knows nothing.
        """
        past = sorted(iteration for iteration in iterations if iteration < saved)
        old = past[: max(0, len(past) - (self.last - 1))]
        return [iteration for iteration in old if self.interval is None or iteration % self.interval]

    def apply(self, root: Path, saved: int) -> list[str]:
        """Remove what goes, once the tracker names `saved`; the folders' names.

        What a link leads to is let be, what is not whole, and in any case what the tracker names.
        """
        there = {
            int(name): folder
            for folder in root.glob("iter_*")
            if (name := folder.name.removeprefix("iter_")).isdecimal() and (folder / INDEX).is_file()
        }
        named = (root / TRACKER).read_text().strip()
        removed = []
        for iteration in self.stale(list(there), saved):
            if not there[iteration].is_symlink() and str(iteration) != named:
                remove_folder(there[iteration])
                removed.append(there[iteration].name)
        return removed
