"""What a model family has to state to go in and out: its config, both ways, and its table of tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megalite.checkpoint.hf.rows import Row

Settings = dict[str, Any]
"""Our settings of a model, under the names of its flags, nothing left to derive; with `vocab_size`."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`. Both config functions raise ValueError with everything that cannot be expressed."""

    model_type: str
    architecture: str
    base: str
    """What the names of all tensors but the head's begin with; folders that hold no head may leave it out."""
    read_config: Callable[[dict[str, Any]], tuple[Settings, dict[str, Any]]]
    """config.json to our settings, and the fields that do not concern them."""
    write_config: Callable[[Settings], dict[str, Any]]
    """Our settings to what config.json says of the network."""
    rows: Callable[[Settings], list[Row]]
