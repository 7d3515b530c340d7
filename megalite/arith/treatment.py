"""How an update treats a parameter: which decay, and which have a learning rate of their own, as Megatron has it."""

from collections.abc import Sequence
from dataclasses import dataclass

ENDS = ("embedding.word.weight", "head.weight")
"""The word embedding and the output layer."""


@dataclass(frozen=True, kw_only=True, order=True)
class Treatment:
    """What an update does to a parameter that it does not do to every other."""

    decayed: bool
    decoupled: bool = False
    """It has a learning rate of its own."""
    matrix: bool = False
    """It is updated as a whole matrix, not by elements."""


@dataclass(frozen=True, kw_only=True, order=True)
class Kind:
    """What distinguishes parameters that do not lie side by side: their update, replicas, and which sums they owe."""

    treatment: Treatment
    replicated: bool
    owes_tp: bool
    owes_ends: bool


def treatment(name: str, shape: Sequence[int], *, decoupled: bool, by_matrix: bool) -> Treatment:
    """Matrices decay; biases and norms do not, whatever global shape their record gives them.

    With `decoupled`, word embedding and output layer go by a learning rate of their own; positions do not.
    With `by_matrix`, the matrices of layers are updated whole.
    """
    decayed = not name.endswith(".bias") and len(shape) > 1
    return Treatment(
        decayed=decayed,
        decoupled=decoupled and name in ENDS,
        matrix=by_matrix and decayed and name.startswith("layers."),
    )
