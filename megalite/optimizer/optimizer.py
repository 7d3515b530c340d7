"""The optimizer over what a rank owns of a contiguous buffer."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from megalite.arith.treatment import Treatment
from megalite.data_parallel.buffer import GradBuffer
from megalite.data_parallel.layout import Segment
from megalite.optimizer.rules import Rule, StepSize
from megalite.optimizer.states import Resident
from megalite.shard import Shard

MAIN = "optimizer.main."
"""How a checkpoint calls main params that are a copy."""

Homes = Callable[[GradBuffer, Sequence[str]], list[Resident]]
"""Decides where the states of these names live, of all that a rank owns of the buffer."""


def on_device(buffer: GradBuffer, names: Sequence[str]) -> list[Resident]:
    """All on the device."""
    return [Resident(buffer, buffer.owned, names)]


class Optimizer:
    """Updates the main params of what this rank owns by a rule, and gives all ranks the params."""

    def __init__(self, buffer: GradBuffer, rule: Rule, homes: Homes = on_device) -> None:
        self.buffer, self.rule = buffer, rule
        self.steps = 0
        """Updates made: a skipped step did not happen."""
        self.homes = homes(buffer, rule.states)
        self.has_copy = self.homes[0].is_narrow
        """Whether main params are more exact than the params."""
        self.reload_main()

    def mains(self) -> Iterator[tuple[Segment, Tensor]]:
        """The main params, segment by segment."""
        for home in self.homes:
            yield from home.mains()

    def rule_for(self, treatment: Treatment) -> Rule:
        """What parameters with this treatment are updated by."""
        return self.rule

    @torch.no_grad()
    def step(self, *, lr: float, decoupled_lr: float, weight_decay: float) -> None:
        """One update by the main grads as they are."""
        self.steps += 1
        self.buffer.wait_params()

        def apply(segment: Segment, main: Tensor, grad: Tensor, states: list[Tensor]) -> None:
            treatment = segment.kind.treatment
            size = StepSize(
                lr=decoupled_lr if treatment.decoupled else lr,
                weight_decay=weight_decay if treatment.decayed else 0.0,
                number=self.steps,
            )
            self.rule_for(treatment).update(main, grad, states, size)

        for home in self.homes:
            home.update(apply)
        self.buffer.gather_params()

    def reload_main(self) -> None:
        """Take the main params from the params: after weights were loaded without the optimizer's own."""
        for home in self.homes:
            home.reload_main()

    def resume(self, steps: int) -> None:
        """Go on after so many updates, once the weights and `shards` are loaded."""
        self.steps = steps
        if not self.has_copy:
            self.reload_main()

    def shards(self) -> Iterator[Shard]:
        """What a checkpoint holds: each state, and the main params where they are more exact than the params."""
        for home in self.homes:
            yield from home.shards()
