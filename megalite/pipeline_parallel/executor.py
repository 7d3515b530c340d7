"""The one interpreter of pipeline programs. Gradient accumulation is the program of a single stage."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from megalite.pipeline_parallel.mail import Mail
from megalite.schedule.action import Action, Op


class Chunk(Protocol):
    """A stage held by this rank, as the executor sees it."""

    def empty_input(self, microbatch: Any) -> Tensor:
        """Memory for the input of one micro-batch, and for the gradient of its output: [e, b, h]."""
        ...

    def forward(self, x: Tensor | None, microbatch: Any) -> Tensor:
        """The output for one micro-batch, from the output x of the stage before: of the last stage its result."""
        ...

    def backward(self, output: GradientEdge, grad: Tensor | None, *, final: bool, split: bool) -> None:
        """Add the gradients of one micro-batch to main grads, but keep those of weights for later where `split`.

        `grad` is that of the output, None at the last stage. `final`: it is the chunk's last before its `sync_grads`.
        """
        ...

    def weight_grads(self, *, final: bool) -> None:
        """Add the gradients that have been kept for longest."""
        ...

    def sync_grads(self) -> None:
        """The chunk's gradients are complete: start what has not started of their sum over dp."""
        ...


Watch = Callable[[Action], AbstractContextManager[None]]
"""Opened around the computation of each action, its waiting excluded."""


def unwatched(action: Action) -> AbstractContextManager[None]:
    """Nobody looks on."""
    return nullcontext()


def execute(
    program: Sequence[Action], chunks: Mapping[int, Chunk], microbatches: Sequence[Any], mail: Mail, watch: Watch
) -> list[Tensor]:
    """Execute this rank's program; `chunks` is keyed by stage.

    Returns what the last stage gave, in the order of its forwards; of a rank without that stage, nothing.
    """
    final = _before_sums(program)
    live: dict[tuple[int, int], tuple[Tensor | None, GradientEdge]] = {}
    results = []
    for action in program:
        chunk, key = chunks[action.stage], (action.stage, action.microbatch)
        match action.op:
            case Op.RECV_F | Op.RECV_B:
                mail.receive(action, chunk.empty_input(microbatches[action.microbatch]))
            case Op.SEND_F | Op.SEND_B:
                mail.send(action)
            case Op.F:
                x = mail.take(action, backward=False)
                if x is not None:
                    x = x.detach().requires_grad_(torch.is_grad_enabled())
                with watch(action):
                    output = chunk.forward(x, microbatches[action.microbatch])
                if output.requires_grad:
                    # The edge keeps the graph, and lets the tensor go once it is sent.
                    live[key] = x, get_gradient_edge(output)
                if action.stage == mail.last_stage:
                    results.append(output.detach())
                else:
                    mail.post(output.detach(), action, backward=False)
            case Op.B | Op.I:
                grad = mail.take(action, backward=True)
                x, edge = live.pop(key)
                with watch(action):
                    chunk.backward(edge, grad, final=action in final, split=action.op is Op.I)
                if x is not None:
                    assert x.grad is not None
                    mail.post(x.grad, action, backward=True)
            case Op.W:
                with watch(action):
                    chunk.weight_grads(final=action in final)
            case Op.GRAD_SYNC:
                with watch(action):
                    chunk.sync_grads()
    mail.close()
    return results


def _before_sums(program: Sequence[Action]) -> set[Action]:
    """The last backward of each stage before each of its GRAD_SYNCs."""
    last: dict[int, Action] = {}
    found = set()
    for action in program:
        if action.op in (Op.B, Op.I, Op.W):
            last[action.stage] = action
        elif action.op is Op.GRAD_SYNC:
            found.add(last[action.stage])
    return found
