"""Learning rate and weight decay as pure functions of the samples consumed, as Megatron has them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

Shape = Callable[[float], float]

SHAPES: dict[str, Shape] = {
    "linear": lambda r: 1 - r,
    "cosine": lambda r: 0.5 * (math.cos(math.pi * r) + 1),
    "exponential": lambda r: 2 * 0.5**r - 1,
    "minus_sqrt": lambda r: 1 - math.sqrt(r),
}
"""What is left of the way from highest to lowest, after the share r of the decay."""


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Linear warm-up from `init_lr` to `max_lr`, then one of the styles down to `min_lr`. Lengths are in samples."""

    max_lr: float
    min_lr: float
    init_lr: float
    warmup: float
    """Less than `decay`."""
    decay: float
    style: str
    wsd_style: str
    wsd_decay: float

    def __call__(self, samples: int) -> float:
        """The learning rate of the step that starts after this many samples."""
        if self.warmup > 0 and samples <= self.warmup:
            return self.init_lr + (self.max_lr - self.init_lr) * samples / self.warmup
        if self.style == "constant":
            return self.max_lr
        if samples > self.decay:
            return self.min_lr
        if self.style == "inverse-square-root":
            return max(self.min_lr, self.max_lr * math.sqrt(max(self.warmup, 1)) / math.sqrt(max(samples, 1)))
        return self.min_lr + self._left(samples) * (self.max_lr - self.min_lr)

    def _left(self, samples: int) -> float:
        if self.style != "WSD":
            return SHAPES[self.style]((samples - self.warmup) / (self.decay - self.warmup))
        into_fall = samples - (self.decay - self.wsd_decay)
        return SHAPES[self.wsd_style](into_fall / self.wsd_decay) if into_fall > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class WeightDecay:
    """From `start` to `end` over `samples` samples."""

    start: float
    end: float
    samples: int
    style: str

    def __call__(self, samples: int) -> float:
        """The weight decay of the step that starts after this many samples."""
        if self.style == "constant" or samples > self.samples:
            return self.end
        return self.start + (1 - SHAPES[self.style](samples / self.samples)) * (self.end - self.start)


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """All of a run."""

    learning_rate: LearningRate
    weight_decay: WeightDecay
    decoupled: LearningRate | None = None
    """Of the word embedding and the output layer, where they do not share that of all others."""

    @property
    def decoupled_learning_rate(self) -> LearningRate:
        """What the word embedding and the output layer go by."""
        return self.decoupled or self.learning_rate
