"""Sliding windows: from --window-size and --window-attn-skip-freq to each layer's window."""

from megalite.config.schema import Model
from megalite.config.window_pattern import pattern, window_size


def windows(model: Model) -> list[int | None]:
    """How many earlier tokens each layer attends to; None: all. ValueError says which flag does not parse."""
    left = window_size(model.window_size)
    if left is None:
        return [None] * model.num_layers
    return [left if windowed else None for windowed in pattern(model.window_attn_skip_freq, model.num_layers)]
