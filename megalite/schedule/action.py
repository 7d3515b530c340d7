"""The words in which a pipeline program is written."""

from enum import Enum
from typing import NamedTuple


class Op(Enum):
    """What a rank can be told to do with a stage that it holds."""

    F = "F"
    """Forward of one micro-batch."""
    B = "B"
    """Backward of one micro-batch: the gradients of input and weights."""
    I = "I"
    """The first half of a split backward: the gradient of the input, which the stage before waits for."""
    W = "W"
    """The second half: the gradients of the weights, which nobody waits for."""
    SEND_F = "SEND_F"
    """Send the stage's output to the stage after it."""
    RECV_F = "RECV_F"
    """Receive the stage's input from the stage before it."""
    SEND_B = "SEND_B"
    """Send the gradient of the stage's input to the stage before it."""
    RECV_B = "RECV_B"
    """Receive the gradient of the stage's output from the stage after it."""
    GRAD_SYNC = "GRAD_SYNC"
    """A stage's gradients, of the step or of a micro-batch, are complete: start those of their sums over data parallel
    ranks that have not started."""

    __hash__ = object.__hash__  # each member is one object; the hash of Enum is several times slower


COMPUTE = (Op.F, Op.B, Op.I, Op.W)
"""What takes a rank's time; the rest is communication."""


class Action(NamedTuple):
    """One step of a program; its text form is `F2.5`: forward of stage 2, micro-batch 5.

    A tuple, because proofs look up hundreds of thousands of them.
    """

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
