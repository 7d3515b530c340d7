"""Look-ups in the table of Megatron's flags that are not ours."""

from dataclasses import dataclass
from functools import cache

from megalite.config.flag_table import NO_EFFECT, REFUSED


@dataclass(frozen=True, kw_only=True)
class Absent:
    """What is to be said about a flag that we know but do not have."""

    flag: str
    reason: str
    refused: bool
    neutral: tuple[str, ...]
    """Values with which it asks for nothing."""


@cache
def absent_flags() -> tuple[Absent, ...]:
    """Every row of the table, first match first."""
    return tuple(
        Absent(flag=flag, reason=reason, refused=refused, neutral=tuple(neutral.split("|")) if neutral else ())
        for refused, table in ((False, NO_EFFECT), (True, REFUSED))
        for reason, row in table
        for flag, _, neutral in (entry.partition("=") for entry in row.split())
    )


def absent(flag: str) -> Absent | None:
    """The row of a flag, or None where Megatron has no such flag that we know of. Exact names come before endings."""
    rows = absent_flags()
    exact = [row for row in rows if row.flag in (flag, _twin(flag))]
    return next(iter(exact + [row for row in rows if row.flag[-1] == "*" and flag.startswith(row.flag[:-1])]), None)


def _twin(flag: str) -> str:
    """The other spelling that Megatron gives to a negation."""
    if flag.startswith("--disable-"):
        return flag.replace("--disable-", "--no-", 1)
    return flag.replace("--no-", "--disable-", 1)
