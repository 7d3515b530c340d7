"""The optimizer over a contiguous buffer: main params and states are vectors laid out like it."""

from collections.abc import Iterator

import torch
from torch import Tensor

from megalite.data_parallel.buffer import GradBuffer
from megalite.optimizer.rules import Rule, StepSize
from megalite.shard import Shard

MAIN = "optimizer.main."
"""How a checkpoint calls main params that are a copy."""


class Optimizer:
    """Updates main params by a rule and copies them to the params.

    Main params are the params themselves where these are fp32 or wider, and an fp32 copy where they are narrower.
    """

    def __init__(self, buffer: GradBuffer, rule: Rule) -> None:
        self.buffer, self.rule = buffer, rule
        self.steps = 0
        """Updates made: a skipped step did not happen."""
        self.has_copy = buffer.params.dtype != buffer.grads.dtype
        self.main = buffer.params.to(buffer.grads.dtype) if self.has_copy else buffer.params
        self.states = {name: torch.zeros_like(self.main) for name in rule.states}

    @torch.no_grad()
    def step(self, *, lr: float, weight_decay: float) -> None:
        """One update by the main grads as they are."""
        self.steps += 1
        for segment in self.buffer.segments:
            r = segment.range
            size = StepSize(lr=lr, weight_decay=weight_decay if segment.kind.decayed else 0.0, number=self.steps)
            self.rule.update(self.main[r], self.buffer.grads[r], [state[r] for state in self.states.values()], size)
        if self.has_copy:
            self.buffer.params.copy_(self.main)

    def reload_main(self) -> None:
        """Take the main params from the params: after weights were loaded without the optimizer's own."""
        if self.has_copy:
            self.main.copy_(self.buffer.params)

    def shards(self) -> Iterator[Shard]:
        """What a checkpoint holds: each state, and the main params where they are more exact than the params."""
        vectors: dict[str, Tensor] = dict(self.states)
        if self.has_copy:
            vectors["main"] = self.main
        for kind, vector in vectors.items():
            for slot in self.buffer.slots:
                yield slot.shard(f"optimizer.{kind}.{slot.name}", vector)
