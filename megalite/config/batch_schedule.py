"""The global batch size as a pure function of the samples consumed: what it is, and how many steps samples make."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, kw_only=True)
class BatchSchedule:
    """Batch sizes, each with the number of consumed samples from which on it holds; the first holds from 0 on."""

    sizes: tuple[tuple[int, int], ...]

    def __call__(self, consumed: int) -> int:
        """The size of the global batch that starts after so many samples."""
        return next(size for start, size in reversed(self.sizes) if start <= consumed)

    @property
    def last(self) -> int:
        """The size that the schedule comes to."""
        return self.sizes[-1][1]

    def samples(self, steps: int) -> int:
        """The samples that the first so many steps consume."""
        consumed = 0
        for size, most in self._runs(0):
            if most is None or steps <= most:
                return consumed + steps * size
            consumed, steps = consumed + most * size, steps - most
        raise AssertionError("the last size holds for ever")

    def steps(self, until: int, *, consumed: int = 0) -> int:
        """The whole steps that fit between two numbers of consumed samples."""
        done = 0
        for size, most in self._runs(consumed):
            fit = max(until - consumed, 0) // size
            if most is None or fit < most:
                return done + fit
            consumed, done = consumed + most * size, done + most
        raise AssertionError("the last size holds for ever")

    def _runs(self, consumed: int) -> Iterator[tuple[int, int | None]]:
        """Each size after `consumed` samples, and how many steps are taken with it; None: all that follow."""
        ends = [start for start, _ in self.sizes[1:]]
        for (_, size), end in zip(self.sizes, ends, strict=False):
            steps = max(0, -(-(end - consumed) // size))
            consumed += steps * size
            yield size, steps
        yield self.last, None


def constant(size: int) -> BatchSchedule:
    """The same size throughout."""
    return BatchSchedule(sizes=((0, size),))


def ramp_up(start: int, increment: int, samples: int, *, goal: int) -> BatchSchedule:
    """From `start` to `goal` in equal increments, spread evenly over so many samples."""
    count = (goal - start) // increment if goal > start else 0
    thresholds = [-(-number * samples // count) if number else 0 for number in range(count + 1)]
    sizes = [(threshold, start + number * increment) for number, threshold in enumerate(thresholds)]
    return BatchSchedule(sizes=tuple(dict(sizes).items()))


def from_steps(entries: Sequence[str], *, seq_length: int) -> BatchSchedule:
    """`0:16 2.4B:320`: batches of 16, and after 2.4 billion tokens of 320. ValueError says what is wrong with it."""
    sizes: list[tuple[int, int]] = []
    for entry in " ".join(entries).replace(",", " ").split():
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?):(\d+)", entry, re.IGNORECASE)
        if match is None or int(match[3]) == 0:
            raise ValueError(f"has the entry {entry!r}, which is not TOKENS:SIZE, such as 0:16 or 2.4B:320.")
        sizes.append((round(float(match[1]) * _UNITS[match[2].upper()]), int(match[3])))
    if not sizes or sizes[0][0] != 0:
        raise ValueError("does not say the size at the start. The first entry must begin with 0: as in 0:16 2.4B:320.")
    sizes = [(tokens // seq_length, size) for tokens, size in sizes]
    for (before, _), (after, size) in itertools.pairwise(sizes):
        if after <= before:
            raise ValueError(
                f"comes to size {size} after {after} samples of {seq_length} tokens, which is not later than the size "
                "before it. Put the entries in order."
            )
    return BatchSchedule(sizes=tuple(sizes))


def rounded_down(schedule: BatchSchedule, multiple: int) -> BatchSchedule:
    """With each size lowered to a multiple; a size below it is left, for validation to refuse."""
    return BatchSchedule(sizes=tuple((at, size // multiple * multiple or size) for at, size in schedule.sizes))
