"""A user's mistake as a value, so that all of them can be shown at once."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong, in the words of the command line."""

    flags: tuple[str, ...]
    """The flags at fault."""
    text: str
    """The values, the rule and a value that works."""

    def __str__(self) -> str:
        return self.text
