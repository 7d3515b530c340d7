"""The only reader of the process environment: what the launcher (torchrun) says about this process."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Where this process stands among the processes of the job; a plain `python` run is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    error_file: str | None = None
    """Where the launcher looks for the reason of a failure, to show it in its closing lines."""


def launch() -> Launch:
    """Read the variables that torchrun sets; ValueError names the one that is not a whole number."""
    return Launch(
        rank=_integer("RANK", 0),
        world_size=_integer("WORLD_SIZE", 1),
        local_rank=_integer("LOCAL_RANK", 0),
        local_world_size=_integer("LOCAL_WORLD_SIZE", 1),
        error_file=os.environ.get("TORCHELASTIC_ERROR_FILE"),
    )


def set_default(name: str, value: str) -> None:
    """Set a variable that libraries read, unless the user has."""
    os.environ.setdefault(name, value)


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"The environment variable {name}={text!r} is not a whole number.") from None


def allocator_is_tuned() -> bool:
    """Whether the user sets up the C library's allocator (glibc's MALLOC_... variables)."""
    return any(name.startswith("MALLOC_") for name in os.environ)
