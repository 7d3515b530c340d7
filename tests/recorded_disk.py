"""A recording layer between the code and the disk, and what must hold of the record.

A loss of power keeps what was flushed, and of the rest whatever it likes. So of a save:

    a folder may take its final name    when all files in it, and all folders, were flushed as they are now
    the tracker may be replaced         when its new content was flushed, and then the name of the folder that it names
    a folder may give up its name       when no name before, the tracker's above all, waits to be flushed
    it may be deleted                   when it has a name that nobody looks for, and that was flushed
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from megalite.checkpoint.place import TRACKER

FINAL = re.compile(r"iter_\d+|release")
State = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something done to the disk: `fsync`, `rename` or `delete`."""

    act: str
    path: str
    """In the recorded folder; of a rename, the new one."""
    source: str = ""
    state: State = ()
    """Of what is flushed: how it was."""
    tree: dict[str, State] = field(default_factory=dict)
    """Of what is renamed: how it was with all that is in it, by the names of before."""


def state_of(path: Path) -> State:
    """What changes when a file is written, or when a folder gets or loses an entry."""
    if path.is_dir():
        return ("folder", *sorted(os.listdir(path)))
    return ("file", path.stat().st_size, path.stat().st_mtime_ns)


@contextmanager
def recorded(root: Path) -> Iterator[list[Event]]:
    """All that is done to the disk under `root` while the context lasts."""
    events: list[Event] = []

    def within(path: Any) -> str:
        return str(Path(path).relative_to(root))

    def fsync(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        real["fsync"](handle)
        events.append(Event(act="fsync", path=within(path), state=state_of(path)))

    def renaming(function: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any) -> None:
            tree = {within(path): state_of(path) for path in [Path(source), *Path(source).rglob("*")]}
            events.append(Event(act="rename", path=within(target), source=within(source), tree=tree))
            function(source, target)

        return rename

    def rmtree(path: Any, **options: Any) -> None:
        if Path(path).exists():
            events.append(Event(act="delete", path=within(path)))
        real["rmtree"](path, **options)

    real: dict[str, Callable[..., Any]] = {"fsync": os.fsync, "rmtree": shutil.rmtree}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "rename", renaming(os.rename))
        patch.setattr(os, "replace", renaming(os.replace))
        patch.setattr(shutil, "rmtree", rmtree)
        yield events


def breaches(events: list[Event]) -> list[str]:
    """Where a loss of power could leave a checkpoint that is named, by its folder or by the tracker, and not whole."""
    flushed: dict[str, State] = {}
    unsafe: set[str] = set()
    """Folders of which a name was changed and not flushed."""
    named: str | None = None
    found = []
    for event in events:
        if event.act == "fsync":
            flushed[event.path] = event.state
            unsafe.discard(event.path)
        elif event.act == "rename":
            for path, state in event.tree.items():
                if flushed.get(path) != state and (FINAL.fullmatch(event.path) or event.path == TRACKER):
                    found.append(f"{path} became a part of {event.path} before it was flushed")
                if path in flushed:
                    flushed[event.path + path.removeprefix(event.source)] = flushed.pop(path)
            if event.path == TRACKER:
                if "." in unsafe:
                    found.append("the tracker was replaced before the name that it says was flushed")
                if named is None:
                    found.append("the tracker was replaced before there was what it says")
            if unsafe and FINAL.fullmatch(event.source):
                found.append(f"{event.source} gave up its name before the tracker was flushed")
            named = event.path if FINAL.fullmatch(event.path) else named
            unsafe.add(str(Path(event.path).parent))
        elif FINAL.fullmatch(event.path):
            found.append(f"{event.path} was deleted under its own name")
        elif unsafe:
            found.append(f"{event.path} was deleted before its new name was flushed")
    found += ["the tracker was not flushed at the end"] * bool(unsafe)
    return found
