"""The words in which a pipeline program is written."""

from dataclasses import dataclass
from enum import Enum


class Op(Enum):
    """What a rank can be told to do with a stage."""

    F = "F"
    """Forward of one micro-batch."""
    B = "B"
    """Backward of one micro-batch: the gradients of input and weights."""
    I = "I"
    """The first half of a split backward: the gradient of the input, which the stage before waits for."""
    W = "W"
    """The second half: the gradients of the weights, which nobody waits for."""
    GRAD_SYNC = "GRAD_SYNC"
    """Finish the sum of a stage's gradients over data parallel ranks."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """One step of a program; its text form is `F2.5`: forward of stage 2, micro-batch 5."""

    op: Op
    stage: int
    microbatch: int = -1
    """-1 where the action concerns all of them."""

    def __str__(self) -> str:
        return f"{self.op.value}{self.stage}" + (f".{self.microbatch}" if self.microbatch >= 0 else "")


Program = list[Action]
"""What one rank does, in order."""


def text(program: Program) -> str:
    """A program on one line."""
    return " ".join(map(str, program))
