"""Which parameters decay."""

from megalite.shard import ShardSpec


def decays(name: str, spec: ShardSpec) -> bool:
    """Matrices decay; biases and norms do not, whatever shape their record gives them."""
    return not name.endswith(".bias") and len(spec.global_shape) > 1
