"""What a rule is given, and the suggestions that rules share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from megalite.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of a run and the world that they meet."""

    config: Config
    world_size: int
    exists: Callable[[str], bool]
    """Whether a path is there."""
    read: Callable[[str], str]
    """The text of a file; OSError where it cannot be read."""


Rules = tuple[tuple[str, Callable[[Job], Iterator[str]]], ...]
"""The flags that a rule reads, and the rule: the text of each breach."""


def near(value: int, multiple: int, *, offset: int = 0) -> str:
    """The multiples around a value, each with `offset` added."""
    below = value // multiple * multiple
    return f"{below + offset} or {below + multiple + offset}" if below or offset else str(multiple)


def divisors(number: int) -> str:
    """The divisors of a number, smallest first."""
    found = [str(d) for d in range(1, number + 1) if number % d == 0][:8]
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
