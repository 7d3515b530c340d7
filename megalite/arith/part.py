"""How much of a model is counted."""

from dataclasses import dataclass

from megalite.config.size import ModelSize


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one stage has of a model, or one rank in all its stages."""

    layers: int
    embedding: bool
    loss: bool
    """The final norm, the head and the loss."""


def whole(size: ModelSize) -> Part:
    """All of a model."""
    return Part(layers=size.num_layers, embedding=True, loss=True)
