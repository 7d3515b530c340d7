"""One record, a line or a row or a file, to its texts."""

import json
import re
from collections.abc import Sequence

Texts = list[str]
"""The sequences of a document: most often one."""
_HALF = re.compile("[\ud800-\udfff]")


def read_record(
    data: bytes, keys: Sequence[str], *, is_json: bool, may_replace: bool = False
) -> tuple[dict[str, Texts], bool]:
    """The texts under each key, and whether anything in them was replaced by U+FFFD.

    ValueError says what is wrong, as the end of a sentence that begins with the place. A record that is not JSON is
    itself the text.
    """
    replaced = False
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not may_replace:
            raise ValueError(f" is not {'JSON in ' if is_json else ''}UTF-8: {error}") from error
        text, replaced = data.decode(errors="replace"), True
    if not is_json:
        return {keys[0]: [text]}, replaced
    values = _values(text, keys)
    for key, found in values.items():
        half = next(filter(None, map(half_pair, found)), None)
        if half and not may_replace:
            raise ValueError(f" cannot be encoded: {half} alone is not a character")
        if half:
            values[key], replaced = list(map(characters_only, found)), True
    return values, replaced


def _values(text: str, keys: Sequence[str]) -> dict[str, Texts]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f" is not JSON in UTF-8: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(' is not a JSON object such as {"text": "..."}')
    values = {}
    for key in keys:
        if key not in record:
            raise ValueError(f" has no key {key!r}; --json-keys names what each line must have")
        value = record[key]
        values[key] = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str) for part in values[key]):
            kind = type(value).__name__ if not isinstance(value, list) else "a list of other things"
            raise ValueError(f": the value of {key!r} is {kind}, not a string")
    return values


def half_pair(text: str) -> str | None:
    """The name of a half of a surrogate pair in a text: JSON can spell one, but it is not a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"U+{ord(text[error.start]):04X}"
    return None


def characters_only(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair."""
    return _HALF.sub("\ufffd", text)
