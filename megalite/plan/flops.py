"""FLOPs of a step by the conventions in which runs are reported."""

from collections.abc import Callable

from megalite.arith.flops import model_flops
from megalite.config.size import ModelSize
from megalite.plan.layout import Recompute


def executed_flops(size: ModelSize, *, samples: int, recompute: Recompute) -> int:
    """Model FLOPs, and the forward passes that are made twice. With full recomputation it is 96BLsh^2 (1 + s/(6h) +
    V/(16Lh)) for the GPT of the papers: Narayanan et al. 2021, equation 3.
    """
    s = size.seq_length
    core = 4 * s * size.query_width * size.num_layers * samples * s
    layers = model_flops(size, samples=samples) // 3 - 2 * size.hidden_size * size.vocab_size * samples * s
    return model_flops(size, samples=samples) + {"none": 0, "selective": core, "full": layers}[recompute]


def causal_flops(size: ModelSize, *, samples: int) -> int:
    """Model FLOPs where attention counts only what a causal kernel computes, half of the square: as Megatron counts
    today.
    """
    s = size.seq_length
    return model_flops(size, samples=samples) - 6 * s * size.query_width * size.num_layers * samples * s


def papers_selective_flops(size: ModelSize, *, samples: int) -> int:
    """72BLsh^2 (1 + s/(3h) + V/(12Lh)) as Korthikanti et al. 2022, appendix A, has it: attention counts twice, three
    times what one more forward of it adds.
    """
    s = size.seq_length
    return model_flops(size, samples=samples) + 12 * s * size.query_width * size.num_layers * samples * s


CONVENTIONS: dict[str, Callable[..., int]] = {
    "model": model_flops,
    "model, causal": causal_flops,
    "hardware, full recompute": lambda size, *, samples: executed_flops(size, samples=samples, recompute="full"),
    "hardware, selective recompute": papers_selective_flops,
}
"""By the names in which reports are told apart."""
