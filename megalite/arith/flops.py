"""Model FLOPs: what the mathematics of a step needs, whatever is computed twice or skipped."""

from megalite.arith.parameters import layer_matrices
from megalite.config.size import ModelSize


def model_flops(size: ModelSize, *, samples: int) -> int:
    """FLOPs of forward and backward over this many sequences; a multiply-add is 2, a backward twice its forward.

    Attention counts as if it saw the whole square, as in the literature: causal kernels that skip half do not change
    the number. For the GPT of the papers it is 72BLsh^2 (1 + s/(6h) + V/(12Lh)): Korthikanti et al. 2022, appendix A.
    """
    s, h = size.seq_length, size.hidden_size
    scores_and_values = 2 * s * size.query_width
    forward_per_token = 2 * (size.num_layers * (layer_matrices(size) + scores_and_values) + h * size.vocab_size)
    return 3 * samples * s * forward_per_token
