"""The executor alone: what it keeps, and what it lets go."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.multiprocessing.reductions import StorageWeakRef

from megalite.comm.collectives import Pending
from megalite.comm.p2p import Link
from megalite.mesh import Group
from megalite.pipeline_parallel.executor import execute, unwatched
from megalite.pipeline_parallel.mail import Mail
from megalite.schedule.lower import lower
from megalite.schedule.schedules import make_schedule

WIDTH = 8
PP = Group(name="pp", ranks=(0, 1), rank=0)


class Wire(Link):
    """A link on which everything arrives at once: gradients of ones."""

    def send(self, x: Tensor, *, to: int, tag: int) -> Pending:
        return Pending(x)

    def receive(self, into: Tensor, *, source: int, tag: int) -> Pending:
        return Pending(into.fill_(1))


@dataclass
class First:
    """The first of two stages: inputs times a weight, and a step that saves what it is given, not what it gives."""

    weight: Tensor = field(default_factory=lambda: torch.ones(WIDTH, WIDTH, requires_grad=True))
    outputs: list[StorageWeakRef] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)

    def empty_input(self, microbatch: Any) -> Tensor:
        return torch.empty(1, WIDTH)

    def forward(self, x: Tensor | None, microbatch: Tensor) -> Tensor:
        self.alive.append(sum(not output.expired() for output in self.outputs))
        output = microbatch @ self.weight
        self.outputs.append(StorageWeakRef(output.untyped_storage()))
        return output

    def backward(self, output: GradientEdge, grad: Tensor | None, *, final: bool, split: bool) -> None:
        self.alive.append(sum(not output.expired() for output in self.outputs))
        torch.autograd.backward([output], [grad])

    def weight_grads(self, *, final: bool) -> None:
        raise AssertionError

    def sync_grads(self) -> None:
        pass


def test_an_output_is_let_go_when_it_is_sent() -> None:
    """The graph stays, for backward; of the outputs none is kept beside the one that was just computed."""
    program = lower(make_schedule("1f1b", num_ranks=2, num_micro_batches=4), num_micro_batches=4)[0]
    chunk = First()
    batch = [torch.full((1, WIDTH), float(number)) for number in range(1, 5)]
    results = execute(program, {0: chunk}, batch, Mail(Wire(PP, PP), [0, 1]), unwatched)
    assert results == []
    assert max(chunk.alive) <= 1
    assert torch.equal(chunk.weight.grad, torch.full((WIDTH, WIDTH), 10.0))
