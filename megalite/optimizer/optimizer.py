"""The optimizer over what a rank owns of a contiguous buffer."""

from collections.abc import Iterator

import torch
from torch import Tensor

from megalite.data_parallel.buffer import GradBuffer
from megalite.data_parallel.layout import Segment
from megalite.optimizer.rules import Rule, StepSize
from megalite.shard import Shard

MAIN = "optimizer.main."
"""How a checkpoint calls main params that are a copy."""


class Optimizer:
    """Updates the main params of what this rank owns by a rule, and gives all ranks the params.

    Main params are the params themselves where these are fp32 or wider, and an fp32 copy where they are narrower.
    States, and that copy, are vectors of all that is owned.
    """

    def __init__(self, buffer: GradBuffer, rule: Rule) -> None:
        self.buffer, self.rule = buffer, rule
        self.steps = 0
        """Updates made: a skipped step did not happen."""
        size = buffer.owned[-1].local.stop if buffer.owned else 0
        self.has_copy = buffer.params.dtype != buffer.grads.dtype
        self.copy = buffer.grads.new_empty(size if self.has_copy else 0)
        self.states = {name: buffer.grads.new_zeros(size) for name in rule.states}
        self.reload_main()

    def main(self, segment: Segment) -> Tensor:
        """The main params of one segment."""
        return self.copy[segment.local] if self.has_copy else self.buffer.params[segment.range]

    @torch.no_grad()
    def step(self, *, lr: float, weight_decay: float) -> None:
        """One update by the main grads as they are."""
        self.steps += 1
        self.buffer.wait_params()
        for segment in self.buffer.owned:
            states = [state[segment.local] for state in self.states.values()]
            size = StepSize(lr=lr, weight_decay=weight_decay if segment.kind.decayed else 0.0, number=self.steps)
            self.rule.update(self.main(segment), self.buffer.grads[segment.range], states, size)
            if self.has_copy:
                self.buffer.params[segment.range].copy_(self.copy[segment.local])
        self.buffer.gather_params()

    def reload_main(self) -> None:
        """Take the main params from the params: after weights were loaded without the optimizer's own."""
        if self.has_copy:
            for segment in self.buffer.owned:
                self.copy[segment.local].copy_(self.buffer.params[segment.range])

    def shards(self) -> Iterator[Shard]:
        """What a checkpoint holds: each state, and the main params where they are more exact than the params."""
        vectors = {**self.states, **({"main": self.copy} if self.has_copy else {})}
        for kind, vector in vectors.items():
            for piece in self.buffer.pieces:
                yield piece.shard(f"optimizer.{kind}.{piece.slot.name}", vector)
