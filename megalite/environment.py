"""What the launcher (torchrun) says about this process, and is told by it. The only reader of the environment."""

import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
"""An option of prctl(2)."""


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


def end_with_launcher(here: Launch) -> None:
    """Have this process be sent SIGTERM when its launcher is gone, so that a killed torchrun leaves no ranks behind.

    On Linux; elsewhere they run on until a collective fails.
    """
    if here.world_size > 1 and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def fail(here: Launch, program: str, text: str, *, status: int) -> int:
    """Say what is wrong, on the screen and in the launcher's closing lines; returns the status to exit with.

    torchrun ends every rank when one exits: what all have to say, rank 0 says for them.
    """
    if here.rank != 0:
        time.sleep(3)
    said = f"{program}: {f'rank {here.rank}: ' if here.rank else ''}{text}"
    print(said, file=sys.stderr, flush=True)
    if here.error_file:
        Path(here.error_file).write_text(json.dumps({"message": said, "timestamp": int(time.time())}))
    return status


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"The environment variable {name}={text!r} is not a whole number.") from None


def allocator_is_tuned() -> bool:
    """Whether the user sets up the C library's allocator (glibc's MALLOC_... variables)."""
    return any(name.startswith("MALLOC_") for name in os.environ)


def compute_threads(here: Launch, asked: int | None) -> int:
    """Threads for this rank's work on a CPU: as asked, or OMP_NUM_THREADS, or its part of the machine's cores.

    torchrun sets OMP_NUM_THREADS to 1 where several ranks share a machine and nobody has set it: that is not a wish.
    """
    named = os.environ.get("OMP_NUM_THREADS", "")
    wished = int(named) if named.isdecimal() and not (named == "1" and here.local_world_size > 1) else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return asked or wished or max(1, cores // here.local_world_size)
