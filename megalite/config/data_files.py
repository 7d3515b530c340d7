"""Which corpora the data flags name, directly or in a file."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from megalite.config.schema import Data
from megalite.config.split import split_blend

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Blend:
    """Prefixes, or weight and prefix in turn, and where they were named."""

    entries: tuple[str, ...]
    source: str
    """The flag, with the file and its key if it names one."""

    def prefixes(self) -> list[str]:
        """ValueError where the entries cannot be meant."""
        return split_blend(self.entries, self.source)[0]


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """Either one blend for --split to cut, or a blend for each part."""

    common: Blend | None = None
    parts: dict[str, Blend] = field(default_factory=dict)

    @property
    def blends(self) -> list[Blend]:
        """All of them."""
        return [self.common] if self.common else list(self.parts.values())


def sources(data: Data) -> list[str]:
    """The flags that say what the data are, of which one is allowed: those of the three parts are one."""
    given = {
        "--data-path": data.data_path,
        "--data-args-path": data.data_args_path,
        "--train-data-path": data.train_data_path or data.valid_data_path or data.test_data_path,
        "--per-split-data-args-path": data.per_split_data_args_path,
        "--mock-data": data.mock_data,
    }
    return [flag for flag, value in given.items() if value]


def data_files(data: Data, read: Callable[[str], str]) -> DataFiles:
    """The corpora of one source. ValueError says what is wrong with a file; `read` gives its text."""
    if data.data_args_path is not None:
        source = f"--data-args-path {data.data_args_path}"
        return DataFiles(common=Blend(entries=tuple(_text(read, source).split()), source=f"{source}:"))
    if data.per_split_data_args_path is not None:
        source = f"--per-split-data-args-path {data.per_split_data_args_path}"
        return DataFiles(parts=_parts(_text(read, source), source))
    if data.data_path:
        return DataFiles(common=Blend(entries=data.data_path, source="--data-path"))
    named = {part: getattr(data, f"{part}_data_path") for part in PARTS}
    return DataFiles(
        parts={part: Blend(entries=entries, source=f"--{part}-data-path") for part, entries in named.items() if entries}
    )


def _text(read: Callable[[str], str], source: str) -> str:
    path = source.partition(" ")[2]
    try:
        return read(path)
    except OSError as error:
        raise ValueError(f"{source} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{source} is not a text file.") from None


def _parts(text: str, source: str) -> dict[str, Blend]:
    form = 'Write {"train": ["data/a"], "valid": ["0.3", "data/b", "0.7", "data/c"], "test": null}.'
    try:
        table = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source} is not valid JSON: {error}. {form}") from None
    if not isinstance(table, dict) or set(table) != set(PARTS):
        raise ValueError(f"{source} must be an object with the keys train, valid and test. {form}")
    blends = {}
    for part in PARTS:
        entries = table[part].split() if isinstance(table[part], str) else table[part] or []
        if not isinstance(entries, list) or not all(isinstance(entry, str | int | float) for entry in entries):
            raise ValueError(f"{source}: {part} is neither a list of texts, nor a text, nor null. {form}")
        if entries:
            blends[part] = Blend(entries=tuple(map(str, entries)), source=f"{source}: {part}:")
    return blends
