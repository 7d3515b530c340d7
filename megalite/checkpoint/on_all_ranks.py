"""Doing something on every rank so that all ranks learn of a failure on any, and none waits for one that gave up."""

from collections.abc import Callable
from typing import TypeVar

from megalite.comm.collectives import all_gather_object
from megalite.mesh import Group

T = TypeVar("T")


def on_all_ranks(action: Callable[[], T], world: Group, failed: Callable[[str], Exception]) -> list[T]:
    """What `action` returned on each rank, in their order.

    Where it raised on any rank, every rank raises `failed(text)`; the text has each rank's error, alike ones once.
    """
    outcome: T | None = None
    problem, cause = None, None
    try:
        outcome = action()
    except Exception as error:
        expected = isinstance(error, (OSError, ValueError))
        problem, cause = str(error) if expected else f"{type(error).__name__}: {error}", error
    outcomes = all_gather_object((outcome, problem), world)
    if all(text is None for _, text in outcomes):
        return [value for value, _ in outcomes]
    ranks: dict[str, list[int]] = {}
    for rank, (_, text) in enumerate(outcomes):
        if text is not None:
            ranks.setdefault(text, []).append(rank)
    if world.size == 1:
        raise failed(next(iter(ranks))) from cause
    lines = [f"rank {', '.join(map(str, who))}: {text}" for text, who in ranks.items()]
    raise failed("\n".join(lines)) from cause
