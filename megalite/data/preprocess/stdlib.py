"""A corpus that every Python has: the sources of its own standard library."""

import hashlib
import json
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = {
    *("test", "tests", "idle_test"),
    *("encodings", "pydoc_data"),  # Tables and texts that programs wrote.
    *("site-packages", "dist-packages", "__pycache__"),  # Not Python's own.
}
"""Folders without sources that somebody wrote for the library to run."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """What came of it."""

    files: int
    bytes: int
    skipped: int
    """Files that are not UTF-8."""


def build_stdlib_corpus(output: Path, library: Path | None = None) -> Built:
    """Write a JSONL line {"text", "path"} for each source file; `library` is sysconfig's stdlib when None.

    The order is shuffled by a hash of the path, the same everywhere, so that the last lines, which become the
    validation split, are not all of one package. The file appears whole or not at all.
    """
    root = library or Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    names = [name for name in names if not LEFT_OUT.intersection(name.parts)]
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())
    files = size = skipped = 0
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for name in names:
                content = (root / name).read_bytes()
                try:
                    text = content.decode()
                except UnicodeDecodeError:
                    skipped += 1
                    continue
                if text:
                    file.write(json.dumps({"text": text, "path": name.as_posix()}, ensure_ascii=False) + "\n")
                    files, size = files + 1, size + len(content)
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    if not files:
        raise ValueError(f"{root} holds no Python sources")
    return Built(files=files, bytes=size, skipped=skipped)
