"""Settings as text: the help, the differences from the defaults, and the file that repeats a run."""

import json
import shlex
import textwrap
from itertools import groupby
from typing import Any, Literal, get_args, get_origin

from megalite.config.alternatives import COMMAND_LINE
from megalite.config.cli import ACTIONS
from megalite.config.options import Option, options
from megalite.config.schema import Config


def value_of(config: Config, option: Option) -> Any:
    """The value of an option."""
    return getattr(getattr(config, option.section), option.name)


def differences(config: Config, origins: dict[str, str]) -> list[str]:
    """The settings that are not their defaults: of a file as a paragraph, of the command line a line each."""
    rows = [(o.name, to_text(value_of(config, o)), o.default) for o in options() if value_of(config, o) != o.default]
    origins = {name: origins.get(name, "?") for name, _, _ in rows}
    lines = []
    for file in dict.fromkeys(origin for origin in origins.values() if origin != COMMAND_LINE):
        said = ", ".join(f"{name} = {text}" for name, text, _ in rows if origins[name] == file)
        lines += textwrap.wrap(f"from {file}: {said}", 120, subsequent_indent="  ", break_long_words=False)
    given = [row for row in rows if origins[row[0]] == COMMAND_LINE]
    width, value_width = (max((len(row[i]) for row in given), default=0) for i in (0, 1))
    return lines + [
        f"{name:{width}} = {text:{value_width}}  from {COMMAND_LINE}"
        + ("" if default is None or default == () else f", instead of {to_text(default)}")
        for name, text, default in given
    ]


def to_toml(config: Config) -> str:
    """A file that, given as --config alone, repeats the run. It states every setting, so that defaults may change."""
    lines = []
    for section, members in groupby(options(), key=lambda option: option.section):
        stated = [(option.name, value_of(config, option)) for option in members]
        lines += [f"[{section}]", *(f"{name} = {to_text(value)}" for name, value in stated if value is not None), ""]
    return "\n".join(lines)


def to_flags(config: Config, *sections: str) -> list[str]:
    """The flags of what is not its default, each with its value."""
    stated = [(option, value_of(config, option)) for option in options() if option.section in sections]
    return [
        option.flag if isinstance(value, bool) else f"{option.flag} {shlex.quote(str(value))}"
        for option, value in stated
        if value is not None and value != option.default
    ]


def help_text(program: str) -> str:
    """Every flag with its meaning."""
    lines = [f"Usage: {program} --flag value ...", ""]
    lines += [line for flag, meaning in ACTIONS.items() for line in _entry(flag, meaning)]
    for section, members in groupby(options(), key=lambda option: option.section):
        lines += ["", f"[{section}]"]
        for option in members:
            default = "" if option.default in (None, (), False, True) else f" Default: {to_text(option.default)}."
            lines += _entry(f"{option.flag}{_placeholder(option)}", meaning(option) + default)
    return "\n".join(lines)


def meaning(option: Option) -> str:
    """What the flag of an option does; that of a True default turns it off."""
    return f"Do not: {option.help[0].lower()}{option.help[1:]}" if option.default is True else option.help


def _entry(flag: str, meaning: str) -> list[str]:
    return [f"  {flag}", *textwrap.wrap(meaning, 110, initial_indent=" " * 6, subsequent_indent=" " * 6)]


def _placeholder(option: Option) -> str:
    if get_origin(option.kind) is Literal:
        return f" {'|'.join(get_args(option.kind))}"
    if option.kind is tuple:
        return {int: " N ...", str: " TEXT ..."}[option.item]
    return {bool: "", int: " N", float: " X"}.get(option.kind, " TEXT")


def to_text(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(to_text(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
