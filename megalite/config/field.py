"""How a setting states its default and its bounds."""

from dataclasses import field
from typing import Any


def option(
    default: Any = None,
    *,
    required: bool = False,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    flag: str | None = None,
) -> Any:
    """A field with bounds on its value, or with a `flag` that is not its name: for a True default, its negation."""
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    stated = {words: bound for words, bound in bounds.items() if bound is not None}
    return field(default=default, metadata={"required": required, "bounds": stated, "flag": flag})
