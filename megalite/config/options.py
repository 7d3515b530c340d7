"""The schema seen as a list: one `Option` per field, with its flag, its help and how to read its value."""

import ast
import difflib
import inspect
import math
import types
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from megalite.config import schema


@dataclass(frozen=True, kw_only=True)
class Option:
    """One field of the schema."""

    section: str
    name: str
    kind: Any
    """int, float, str, bool, tuple or a Literal: the type with "or None" taken off."""
    item: Any
    """int or str: the type of a tuple's items."""
    default: Any
    help: str
    flag: str
    """The flag that its users write: for a True default the one that turns it off."""
    required: bool
    bounds: tuple[tuple[str, float], ...]

    @property
    def opposite(self) -> str:
        """The flag that undoes `flag`, to overrule a configuration file; only booleans have one."""
        positive = "--" + self.name.replace("_", "-")
        if self.flag != positive:
            return positive
        return "--" + positive.removeprefix("--no-") if positive.startswith("--no-") else "--no-" + positive[2:]


@cache
def options() -> tuple[Option, ...]:
    """Every option, in the order of the schema."""
    helps = _docstrings()
    return tuple(
        Option(
            section=section.name,
            name=member.name,
            kind=_kind(get_type_hints(part)[member.name]),
            item=next(iter(get_args(get_type_hints(part)[member.name])), str),
            default=member.default,
            help=helps[part.__name__, member.name],
            flag=member.metadata.get("flag") or "--" + member.name.replace("_", "-"),
            required=member.metadata.get("required", False),
            bounds=tuple(member.metadata.get("bounds", {}).items()),
        )
        for section in fields(schema.Config)
        for part in [get_type_hints(schema.Config)[section.name]]
        for member in fields(part)
    )


def from_text(option: Option, text: str) -> Any:
    """Read a value as the command line gives it. ValueError says what is expected."""
    if get_origin(option.kind) is Literal:
        if text not in get_args(option.kind):
            raise ValueError(f"is not one of {', '.join(get_args(option.kind))}.")
        return text
    if option.kind in (int, float):
        words = "a whole number" if option.kind is int else "a finite number"
        try:
            value = option.kind(text)
        except ValueError:
            raise ValueError(f"is not {words}.") from None
        if not math.isfinite(value):
            raise ValueError(f"is not {words}.")
        return value
    return text


def from_texts(option: Option, texts: Iterable[str]) -> tuple[Any, ...]:
    """Read the items of a tuple as the command line gives them. ValueError says what is expected."""
    try:
        return tuple(option.item(text) for text in texts)
    except ValueError:
        raise ValueError("is not a list of whole numbers.") from None


def from_file(option: Option, value: Any) -> Any:
    """Read a value as a configuration file gives it. ValueError says what is expected."""
    if option.kind is tuple:
        items = value if isinstance(value, list) else [value]
        return from_texts(option, [str(item) for item in items])
    wanted: Any = {int: int, float: (int, float), bool: bool}.get(option.kind, str)
    if not isinstance(value, wanted):
        raise ValueError(f"is not {_words(option.kind)}.")
    return value if option.kind is bool else from_text(option, str(value))


def nearest(word: str, candidates: Iterable[str]) -> str:
    """The candidate that was probably meant, or nothing."""
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.75)), "")


def _words(kind: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a text in quotes")


def _kind(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = [part for part in get_args(annotation) if part is not type(None)]
    return tuple if get_origin(annotation) is tuple else annotation


def _docstrings() -> dict[tuple[str, str], str]:
    """(class, field) to the text under the field, which Python itself throws away."""
    found = {}
    modules = {inspect.getmodule(part) for part in get_type_hints(schema.Config).values()}
    for part in (part for module in modules if module for part in ast.parse(inspect.getsource(module)).body):
        if isinstance(part, ast.ClassDef):
            for statement, after in zip(part.body, part.body[1:], strict=False):
                match statement, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[part.name, name] = " ".join(text.split())
    return found
