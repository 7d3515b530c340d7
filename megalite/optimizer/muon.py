"""Muon: momentum made orthogonal, for the matrices of the layers; Adam for all else (Jordan et al. 2024).

Newton-Schulz needs whole matrices. Momentum lives on its owner, like every state; the main grads, which are summed and
clipped by then, hold what is on its way. Of each bucket with matrices the owners gather their momenta; each rank makes
orthogonal the matrices of which it owns a part, gathered over tp as well, so that updates are those of one rank.
"""

from collections.abc import Sequence
from functools import partial
from itertools import cycle, groupby, islice

import torch
from torch import Tensor

from megalite.arith.buckets import length, shared
from megalite.arith.treatment import Treatment
from megalite.comm.collectives import all_gather
from megalite.data_parallel.buffer import GradBuffer
from megalite.data_parallel.layout import Segment, Slot
from megalite.mesh import Group
from megalite.optimizer.optimizer import Optimizer
from megalite.optimizer.rules import Rule, StepSize
from megalite.optimizer.states import Resident

COEFFICIENTS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
"""Of the quintic polynomials, a set for each step: those that Megatron's `quintic` has."""


def newton_schulz(matrix: Tensor, steps: int) -> Tensor:
    """The matrix [m, n] with all its singular values brought near 1."""
    x = matrix.t() if len(matrix) > matrix.shape[1] else matrix
    x = x / torch.linalg.vector_norm(x).clamp(min=1e-7)
    for a, b, c in islice(cycle(COEFFICIENTS), steps):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.t() if len(matrix) > matrix.shape[1] else x


SCALES = {
    "spectral": lambda m, n: max(m, n) ** 0.5,
    "unit_rms_norm": lambda m, n: (m / n) ** 0.5,
    "shape_scaling": lambda m, n: max(1.0, m / n) ** 0.5,
}
"""What the update of an m x n matrix is multiplied by."""


def directions(whole: Tensor, *, splits_qkv: bool, steps: int, scale: str, extra: float) -> Tensor:
    """The updates of a parameter of this global shape: of one matrix, or of queries, keys and values as three."""
    parts = (slice(None, -2), slice(-2, -1), slice(-1, None)) if splits_qkv and whole.dim() == 4 else (slice(None),)
    found = torch.empty_like(whole)
    for part in parts:
        taken = whole[:, part] if len(parts) > 1 else whole
        matrix = taken.reshape(-1, whole.shape[-1])
        update = newton_schulz(matrix, steps) * (extra * SCALES[scale](*matrix.shape))
        (found[:, part] if len(parts) > 1 else found).copy_(update.view(taken.shape))
    return found


def _descend(param: Tensor, direction: Tensor, states: list[Tensor], step: StepSize) -> None:
    param.mul_(1 - step.lr * step.weight_decay).add_(direction, alpha=-step.lr)


class Muon(Optimizer):
    """Matrices have a momentum, all else the states of `adam`."""

    def __init__(
        self,
        buffer: GradBuffer,
        adam: Rule,
        tp: Group,
        *,
        momentum: float,
        nesterov: bool,
        splits_qkv: bool,
        steps: int,
        scale: str,
        extra: float,
    ) -> None:
        super().__init__(buffer, adam, _homes)
        self.tp, self.momentum, self.nesterov = tp, momentum, nesterov
        self._directions = partial(directions, splits_qkv=splits_qkv, steps=steps, scale=scale, extra=extra)
        self._matrix_rule = Rule(states=("momentum",), update=_descend)

    def rule_for(self, treatment: Treatment) -> Rule:
        return self._matrix_rule if treatment.matrix else self.rule

    @torch.no_grad()
    def step(self, *, lr: float, decoupled_lr: float, weight_decay: float) -> None:
        self.buffer.wait_params()
        for home in self.homes:
            if home.names == self._matrix_rule.states:
                home.update(self._accumulate)
        self._make_orthogonal()
        super().step(lr=lr, decoupled_lr=decoupled_lr, weight_decay=weight_decay)

    def _accumulate(self, segment: Segment, main: Tensor, grad: Tensor, states: list[Tensor]) -> None:
        """Let the main grads hold what is to be made orthogonal."""
        momentum = states[0].lerp_(grad, 1 - self.momentum)
        if self.nesterov:
            grad.lerp_(momentum, self.momentum)
        else:
            grad.copy_(momentum)

    def _make_orthogonal(self) -> None:
        buffer, policy = self.buffer, self.buffer.policy
        buckets = [
            (bucket.range, slots)
            for bucket in buffer.buckets
            if (slots := [slot for slot in bucket.slots if slot.kind.treatment.matrix])
        ]
        for gathering in [policy.start_gather(buffer.grads.vector[where]) for where, _ in buckets]:
            gathering.wait()
        for where, slots in buckets:
            for slot in (slot for slot in slots if length(shared(slot.range, policy.own(where)))):
                self._replace(slot)

    def _replace(self, slot: Slot) -> None:
        """Put the direction of a parameter where its momentum is. All tp ranks own parts of the same parameters."""
        mine = slot.spec.view(self.buffer.grads.vector[slot.range])
        if slot.spec.split_dim is None:
            mine.copy_(self._directions(mine))
            return
        dim, (start, stop) = slot.spec.split_dim, slot.spec.split
        whole = all_gather(mine.movedim(dim, 0).contiguous(), self.tp).movedim(0, dim)
        mine.copy_(self._directions(whole).narrow(dim, start, stop - start))


def _homes(buffer: GradBuffer, names: Sequence[str]) -> list[Resident]:
    """One for each run of segments that have the same states."""
    runs = groupby(buffer.owned, lambda segment: segment.kind.treatment.matrix)
    homes = [Resident(buffer, list(run), ("momentum",) if matrix else names) for matrix, run in runs]
    return homes or [Resident(buffer, (), names)]
