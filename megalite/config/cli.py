"""The command line and configuration files: default < file < flag, and every mistake at once.

argparse is not used: it stops at the first mistake, takes `-1,1,0` for a flag, and knows no origins.
"""

import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from megalite.config.absent import absent, absent_flags
from megalite.config.alternatives import COMMAND_LINE, overruled
from megalite.config.flag_table import CLASHES, SYNONYMS
from megalite.config.options import Option, from_file, from_text, from_texts, nearest, options
from megalite.config.problem import Problem
from megalite.config.schema import Config

ACTIONS = {
    "--config": "Read settings from a .toml file (or .yaml, if PyYAML is installed); flags overrule it.",
    "--dry-run": "Check the settings, print what they amount to, and stop. For 8 ranks: WORLD_SIZE=8 python ...",
    "--print-config": "Print every setting as a configuration file, and stop.",
    "--help": "Print this and stop.",
}
"""Flags that are no settings."""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """What the user asked for. With problems, `config` holds what could be understood."""

    config: Config
    origins: dict[str, str]
    """Where each setting that was given came from, by field name."""
    problems: list[Problem]
    notices: list[str]
    actions: frozenset[str]
    """Those of `--dry-run`, `--print-config` and `--help` that were given."""


def parse(argv: Sequence[str]) -> Parsed:
    """Read the arguments after the program's name, and the files that they name."""
    settings = _Settings()
    given = list(_scan(argv, settings))
    for flag, values in given:
        if flag == "--config":
            settings.take_file(values)
    for flag, values in given:
        if flag != "--config":
            settings.take_flag(flag, values)
    settings.unset_overruled()
    return Parsed(
        config=settings.config(),
        origins=settings.origins,
        problems=[*settings.problems, *settings.refusals(), *settings.clashes()],
        notices=settings.notices(),
        actions=frozenset(flag for flag, _ in given if flag in ACTIONS and flag != "--config"),
    )


def _scan(argv: Sequence[str], settings: "_Settings") -> Iterator[tuple[str, list[str]]]:
    """Each flag with its values: what follows, up to the next flag. A negative number is a value."""
    flag, values = "", list[str]()
    for token in [*argv, "--end"]:
        token = "--help" if token == "-h" else token
        if not (token.startswith("--") and token[2:3].isalpha()):
            values.append(token)
            continue
        if flag:
            synonym, *fixed = SYNONYMS.get(flag, (flag,))
            yield synonym, fixed + values
        elif values:
            settings.fail("", f"{' '.join(values)!r} does not belong to a flag.")
        flag, equals, value = token.partition("=")
        values = [value] if equals else []


class _Settings:
    """What has been read so far: later values overrule earlier ones, problems add up."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.overruled: list[str] = []
        self.without_effect: dict[str, list[str]] = {}
        self.refused: dict[str, dict[str, str]] = {}
        """By reason: each flag, and how it was given."""
        self.by_name = {option.name: option for option in options()}
        self.by_flag = {option.flag: option for option in options()}
        self.by_flag |= {option.opposite: option for option in options() if option.kind is bool}

    def fail(self, flags: str, text: str) -> None:
        self.problems.append(Problem(flags=tuple(flags.split()), text=text))

    def take_flag(self, flag: str, values: list[str]) -> None:
        """One flag of the command line with its values."""
        option = self.by_flag.get(flag)
        if flag in ACTIONS:
            if values:
                self.fail(flag, f"{flag} takes no value, but got {' '.join(values)}.")
        elif option is None:
            self._take_stranger(flag, values)
        elif option.kind is bool:
            if values:
                self.fail(
                    flag, f"{flag} takes no value, but got {' '.join(values)}. To undo it, write {option.opposite}."
                )
            self._put(option, (flag == option.flag) != (option.default is True), COMMAND_LINE)
        elif option.kind is not tuple and len(values) != 1:
            self.fail(flag, f"{flag} takes one value, but got {' '.join(values) or 'none'}.")
        else:
            try:
                value = from_texts(option, values) if option.kind is tuple else from_text(option, values[0])
                self._put(option, value, COMMAND_LINE)
            except ValueError as error:
                self.fail(flag, f"{flag} {' '.join(values)} {error}")

    def take_file(self, values: list[str]) -> None:
        """A configuration file. Its sections are for readers: keys are unique without them."""
        if len(values) != 1:
            self.fail("--config", f"--config takes one file, but got {' '.join(values) or 'none'}.")
            return
        try:
            tables = _read(Path(values[0]))
        except ValueError as error:
            self.fail("--config", f"--config {values[0]} {error}")
            return
        for section, table in tables.items():
            for key, value in table.items() if isinstance(table, dict) else [(section, table)]:
                self._take_key(key, value, values[0])

    def _take_key(self, key: str, value: Any, file: str) -> None:
        option = self.by_name.get(key)
        flag = "--" + key.replace("_", "-")
        if option is not None and value is not None:
            try:
                self._put(option, from_file(option, value), file)
            except ValueError as error:
                self.fail(option.flag, f"{key} = {value!r} in {file} {error}")
        elif option is None and flag in self.by_flag:
            known = self.by_flag[flag].name
            self.fail(self.by_flag[flag].flag, f"{key} in {file} is a flag, not a key. Write {known} = false.")
        elif option is None and value is not False and value is not None:
            items = value if isinstance(value, list) else [value]
            self._take_stranger(flag, [str(item) for item in items if item is not True], file)

    def _take_stranger(self, flag: str, values: list[str], file: str = "") -> None:
        """A flag or a file's key that is no setting of ours: known and harmless, known and refused, or unknown."""
        row = absent(flag)
        name = _key(flag) if file else flag
        place = f" in {file}" if file else ""
        if row is None:
            known = [*self.by_flag, *ACTIONS, *(other.flag for other in absent_flags() if other.flag[-1] != "*")]
            meant = nearest(flag, known)
            hint = f" Did you mean {_key(meant) if file else meant}?" if meant else ""
            self.fail(f"{flag} {meant}", f"{name}{place} is unknown.{hint}")
        elif values and " ".join(values) in row.neutral:
            self.refused.get(row.reason, {}).pop(flag, None)
        elif row.refused:
            given = [f"{name} =" if file and values else name, *values]
            self.refused.setdefault(row.reason, {})[flag] = (
                textwrap.shorten(" ".join(given), 60, placeholder=" ...") + place
            )
        else:
            self.without_effect.setdefault(row.reason, []).append(flag)

    def _put(self, option: Option, value: Any, origin: str) -> None:
        self.values[option.name] = value
        self.origins[option.name] = origin

    def unset_overruled(self) -> None:
        """A flag overrules a file in what it excludes, too: nothing else could unset a key."""
        for name, by in overruled(self.values, self.origins).items():
            del self.values[name]
            self.overruled.append(f"{self.by_name[by].flag} overrules {name} in {self.origins.pop(name)}.")

    def config(self) -> Config:
        parts = {section.name: section.default_factory for section in fields(Config)}
        of_section = {part: [option.name for option in options() if option.section == part] for part in parts}
        given = {part: {name: self.values[name] for name in of_section[part] if name in self.values} for part in parts}
        return Config(**{part: make(**given[part]) for part, make in parts.items()})  # type: ignore[operator]

    def refusals(self) -> Iterator[Problem]:
        """A problem for each reason to refuse: what is missing is said once, not for each of its flags."""
        for reason, given in self.refused.items():
            if not given:
                continue
            *others, last = given.values()
            text = f"{', '.join(others)} and {last} {reason.replace('is', 'are', 1)}" if others else f"{last} {reason}"
            yield Problem(flags=tuple(given), text=text)

    def clashes(self) -> Iterator[Problem]:
        """Flags without effect that contradict a setting."""
        for flag in (flag for flags in self.without_effect.values() for flag in flags if flag in CLASHES):
            name, value, text = CLASHES[flag]
            option = self.by_name[name]
            if self.values.get(name, option.default) == value:
                yield Problem(flags=(flag, option.flag), text=f"{flag} {text}")

    def notices(self) -> list[str]:
        rows = [f"{' '.join(dict.fromkeys(flags))} ({why})" for why, flags in self.without_effect.items()]
        return self.overruled + ([f"Accepted, without effect: {'; '.join(rows)}."] if rows else [])


def _key(flag: str) -> str:
    return flag[2:].replace("-", "_")


def _read(path: Path) -> dict[str, Any]:
    """The tables of a configuration file. ValueError says what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".yaml", ".yml"):
            return _read_yaml(text)
        return tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not valid TOML: {error}.") from None
    except UnicodeDecodeError:
        raise ValueError("is not a text file.") from None


def _read_yaml(text: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ValueError("needs PyYAML: pip install pyyaml, or write TOML.") from None
    try:
        tables = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(tables, dict):
        raise ValueError("holds no settings.")
    return tables
