"""The diary of a run: when it started, saved and stopped."""

import datetime
from contextlib import suppress
from pathlib import Path

from megalite.observe.record import Sink


class ProgressFile(Sink):
    """Appends each note to `path`, with the time; launches that continue a run share the file."""

    flag = "--log-progress"

    def __init__(self, path: Path, *, ranks: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a", encoding="utf-8")
        self.note(f"started on {ranks} rank{'s' * (ranks > 1)}")

    def note(self, text: str) -> None:
        now = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        with suppress(OSError):  # the disk may be full, which must not be the end of the run
            self.file.writelines(f"{now}  {line}\n" for line in text.splitlines())
            self.file.flush()

    def close(self) -> None:
        with suppress(OSError):
            self.file.close()
