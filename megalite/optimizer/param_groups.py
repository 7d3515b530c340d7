"""Which parameters decay, and which have a learning rate of their own: as Megatron has it."""

from megalite.data_parallel.layout import Treatment
from megalite.shard import ShardSpec

ENDS = ("embedding.word.weight", "head.weight")
"""The word embedding and the output layer."""


def treatment(name: str, spec: ShardSpec, *, decoupled: bool, by_matrix: bool) -> Treatment:
    """Matrices decay; biases and norms do not, whatever shape their record gives them.

    With `decoupled`, word embedding and output layer go by a learning rate of their own; positions do not.
    With `by_matrix`, the matrices of layers are updated whole.
    """
    decayed = not name.endswith(".bias") and len(spec.global_shape) > 1
    return Treatment(
        decayed=decayed,
        decoupled=decoupled and name in ENDS,
        matrix=by_matrix and decayed and name.startswith("layers."),
    )
