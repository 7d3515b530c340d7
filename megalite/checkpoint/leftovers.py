"""What saves that were cut off have left behind, and how to know that nobody is at work on it."""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megalite.checkpoint.disk import replace_file
from megalite.checkpoint.place import INDEX, RELEASE, TRACKER

_LEFT = re.compile(rf"\.(iter_\d+|{RELEASE}|{re.escape(TRACKER)})\.(saving|replaced|removed)")
_PATIENCE = 86400.0  # seconds after which what nobody touches is believed to be left, where locks cannot tell


class InUse(OSError):
    """Another process is saving under the same folder."""


@contextmanager
def alone_in(root: Path, *, wait: float) -> Iterator[bool]:
    """Keep others from saving under `root` while the context lasts; InUse if one does so for `wait` seconds.

    Gives whether the file system has such locks: some that are shared by machines have none, and then nobody waits.
    """
    handle, until = os.open(root, os.O_RDONLY), time.monotonic() + wait
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise InUse(f"Another process is saving in {root}. Give each run a folder of its own.") from None
                time.sleep(0.05)
            except OSError:
                yield False
                return
            else:
                yield True
                return
    finally:
        os.close(handle)


def sweep(root: Path, *, alone: bool) -> list[str]:
    """Clear away what was being written, replaced or removed under `root` when a process ended; what was done.

    A checkpoint that had just given up its name to a new one gets it back if the new one is not there. The only one, if
    there is no tracker, is named: its save had come that far. Without a lock (`alone`), what was touched within a day
    is let be.
    """
    left = [entry for entry in root.iterdir() if _LEFT.fullmatch(entry.name) and not entry.is_symlink()]
    swept = []
    for entry in left:
        if not alone and time.time() - entry.stat().st_mtime < _PATIENCE:
            continue
        name, _, kind = entry.name[1:].rpartition(".")
        if kind == "replaced" and not (root / name).exists():
            os.rename(entry, root / name)
        elif entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()
        swept.append(f"cleared away {entry.name}")
    whole = [index.parent.name for index in root.glob(f"iter_*/{INDEX}") if index.parent.name[5:].isdecimal()]
    if len(whole) == 1 and not (root / TRACKER).exists():
        replace_file(root / TRACKER, str(int(whole[0].removeprefix("iter_"))).encode())
        swept.append(f"named {whole[0]}")
    return swept


def sweep_at_start(root: Path) -> list[str]:
    """`sweep`, unless another process is saving at this moment: then that is for its next save."""
    with suppress(InUse), alone_in(root, wait=0) as alone:
        return sweep(root, alone=alone)
    return []
