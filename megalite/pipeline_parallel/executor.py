"""The one interpreter of pipeline programs. Gradient accumulation is the program of a single stage."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from megalite.schedule.action import Action, Op


class Chunk(Protocol):
    """A stage held by this rank, as the executor sees it."""

    def forward(self, microbatch: Any) -> Tensor:
        """The chunk's output for one micro-batch: of the last stage, its summed loss []."""
        ...

    def backward(self, output: Tensor, *, final: bool) -> None:
        """Add the gradients of one micro-batch to main grads; `final` is the step's last backward of this chunk."""
        ...

    def sync_grads(self) -> None:
        """Finish the sum of main grads over dp."""
        ...


def execute(program: Sequence[Action], chunks: dict[int, Chunk], microbatches: Sequence[Any]) -> list[Tensor]:
    """Execute this rank's program; `chunks` is keyed by stage. Returns the loss of each micro-batch, detached."""
    final = {action.stage: action for action in program if action.op is Op.B}
    live: dict[tuple[int, int], Tensor] = {}
    losses = []
    for action in program:
        chunk, key = chunks[action.stage], (action.stage, action.microbatch)
        match action.op:
            case Op.F:
                live[key] = chunk.forward(microbatches[action.microbatch])
                losses.append(live[key].detach())
            case Op.B:
                chunk.backward(live.pop(key), final=final[action.stage] is action)
            case Op.GRAD_SYNC:
                chunk.sync_grads()
            case _:
                raise AssertionError(f"{action}: an action of programs that lowering does not make yet")
    return losses
