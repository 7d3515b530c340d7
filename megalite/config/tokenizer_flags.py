"""The flags that name a tokenizer, for tools: those of a training run, from the schema."""

import argparse
from typing import Any, get_args

from megalite.config.options import Option, options


def add_tokenizer_flags(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add them; where --tokenizer-type is not `required`, its default is no tokenizer."""
    for option in _options():
        choice = option.name == "tokenizer_type"
        kind = int if option.kind is int else str
        parser.add_argument(
            option.flag,
            help=option.help,
            choices=get_args(option.kind) or None,
            required=choice and required,
            default=None if choice else option.default,
            type=kind,
            **({"nargs": "+"} if option.kind is tuple else {}),
        )


def tokenizer_settings(found: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `build_tokenizer`."""
    values = {option.name: getattr(found, option.name) for option in _options()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _options() -> list[Option]:
    return [option for option in options() if option.section == "tokenizer"]
