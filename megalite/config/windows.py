"""What not every layer does: from flags that name layers to a value for each."""

from megalite.config.model import Model
from megalite.config.window_pattern import layer_pattern, pattern, window_size


def windows(model: Model) -> list[int | None]:
    """How many earlier tokens each layer attends to; None: all. ValueError says which flag does not parse."""
    left = window_size(model.window_size)
    if left is None:
        return [None] * model.num_layers
    return [left if windowed else None for windowed in pattern(model.window_attn_skip_freq, model.num_layers)]


def layers_without_rotary(model: Model) -> list[bool]:
    """Whether each layer leaves queries and keys as they are. ValueError where --no-rope-freq does not parse."""
    if model.position_embedding_type != "rope":
        return [True] * model.num_layers
    if model.no_rope_freq is None:
        return [False] * model.num_layers
    return layer_pattern(model.no_rope_freq, model.num_layers, flag="--no-rope-freq", nth=True)
