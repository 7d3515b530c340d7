"""Windows of attention: Hugging Face counts the token itself, --window-size only those before it."""

from collections.abc import Sequence
from typing import Any

from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.fields import Fields
from megalite.config.window_pattern import pattern, window_size


def read_windows(size: Any, windowed: Sequence[bool], fields: Fields) -> Settings:
    """Our settings for a `sliding_window` on some layers; None is no window."""
    if size is None:
        return {}
    if type(size) is not int or size < 1:
        fields.refuse(f"sliding_window is {size!r}: a window has 1 or more tokens")
        return {}
    some = (
        {} if all(windowed) else {"window_attn_skip_freq": str([int(window) for window in windowed]).replace(" ", "")}
    )
    return {"window_size": f"{size - 1},0", **some}


def write_windows(fields: Fields, layers: int) -> tuple[int | None, list[bool]]:
    """The `sliding_window` of our settings, and which layers have it."""
    left = window_size(fields.take("window_size"))
    windowed = pattern(fields.take("window_attn_skip_freq"), layers)
    return (None, [False] * layers) if left is None else (left + 1, windowed)
