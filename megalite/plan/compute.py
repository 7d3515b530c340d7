"""Seconds of one micro-batch in one layer, and at the ends of the model, on one tensor parallel rank."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from megalite.config.size import ModelSize
from megalite.plan.hardware import Device
from megalite.plan.layout import Layout, Practice
from megalite.plan.rates import Rates

KERNEL = 4e-6
"""Seconds of a kernel however small."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Seconds of the device for one micro-batch, forward and backward; the half of the latter that makes the gradients
    of weights apart, since schedules may move it.
    """

    forward: float
    inputs: float
    weights: float

    @property
    def backward(self) -> float:
        return self.inputs + self.weights


class Kernels:
    """Times of kernels on one device at these rates."""

    def __init__(self, device: Device, rates: Rates) -> None:
        self.matmul_rate = device.matmul * rates.matmul
        self.attention_rate = device.matmul * rates.attention
        self.memory_rate = device.bandwidth * rates.memory
        self.edge, self.units = rates.edge, device.units

    def product(self, m: float, n: float, k: float, count: float = 1) -> float:
        """`count` products of m x k with k x n: as fast as they fill the device, or as memory brings them."""
        filled = tiled(m, n, count, self.units) * k / (k + self.edge) * aligned(n) * aligned(k)
        compute = 2 * m * n * k / (self.matmul_rate * filled)
        moved = 2 * (m * k + k * n + m * n) / self.memory_rate
        return KERNEL + count * max(compute, moved)

    def moved(self, nbytes: float) -> float:
        """Reading and writing so many bytes."""
        return nbytes / self.memory_rate


TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.6))
"""Rows and columns of the result that one multiprocessor makes at a time, and how well it does at that."""


@lru_cache(maxsize=65536)
def tiled(m: float, n: float, count: float, units: int) -> float:
    """The share of a device that works on `count` results of m x n, in the tiles that suit them best: the last round
    leaves multiprocessors idle, and so do tiles that stick out.
    """
    best = 0.0
    for rows, columns, worth in TILES:
        tiles = ceil(m / rows) * ceil(n / columns) * count
        rounds = ceil(tiles / units)
        best = max(best, worth * m * n * count / (rounds * units * rows * columns))
    return best


def aligned(width: float) -> float:
    """How well tensor cores do with rows of so many 16-bit elements: best in whole lines of 128 bytes, not at all
    where they are not even multiples of 16 bytes.
    """
    if width % 64 == 0:
        return 1.0
    return 0.95 if width % 8 == 0 else 0.15


def layer_pass(size: ModelSize, layout: Layout, practice: Practice, kernels: Kernels) -> Pass:
    """One layer without its communication. The core of attention, if it alone is computed again, is in `inputs`."""
    t, s, b = layout.tensor, size.seq_length, layout.micro_batch_size
    tokens = s * b / layout.context
    h, q, f = size.hidden_size, size.query_width / t, size.ffn_hidden_size / t
    shapes = ((size.qkv_width / t, h), (h, q), (size.fc1_width / t, h), (h, f))
    product = kernels.product
    forward = sum(product(tokens, n, k) for n, k in shapes)
    inputs = sum(product(tokens, k, n) for n, k in shapes)
    weights = sum(product(n, k, tokens) for n, k in shapes)
    core, core_back = _core(size, layout, practice, kernels)
    rows = tokens / t if layout.sequence_parallel else tokens
    width = practice.param_bytes
    # Two norms (read, write), two sums with the residual (read twice, write), the cut into heads, the activation.
    around = rows * h * (10 + 2 * practice.dropout) * width
    inside = tokens * width * (2 * size.qkv_width / t * (2 if size.rotary_dim else 1) + size.fc1_width / t + f)
    other = kernels.moved(around + inside)
    forward += other
    inputs += 1.5 * other
    again = core if layout.recompute == "selective" else 0.0
    return Pass(forward=forward + core, inputs=inputs + core_back + again, weights=weights)


def _core(size: ModelSize, layout: Layout, practice: Practice, kernels: Kernels) -> tuple[float, float]:
    """Attention without its projections, forward and backward."""
    t, s, b = layout.tensor, size.seq_length, layout.micro_batch_size
    heads, width = size.num_attention_heads / t, size.kv_channels
    tokens = s * b / layout.context
    if practice.attention == "fused":
        # A causal kernel skips half of the square; its backward has five products for two.
        time = KERNEL + 2 * tokens * s * heads * width / kernels.attention_rate
        return time, 2.5 * time
    square = tokens * s * heads
    both = kernels.product(s, s, width, b * heads) + kernels.product(s, width, s, b * heads)
    # Scores are scaled, masked and normed in one kernel; dropout reads them once more and writes a mask.
    passed = square * practice.param_bytes * (2 if practice.attention == "softmax" else 4.5)
    return both + kernels.moved(passed), 2 * both + kernels.moved(1.5 * passed)


def head_pass(size: ModelSize, layout: Layout, practice: Practice, kernels: Kernels) -> Pass:
    """The output layer and the loss."""
    tokens = size.seq_length * layout.micro_batch_size / layout.context
    n, h = size.vocab_size / layout.tensor, size.hidden_size
    # The loss reads logits a few times in 32 bits and writes their gradient.
    loss = kernels.moved(tokens * n * 4 * 3)
    return Pass(
        forward=kernels.product(tokens, n, h) + loss,
        inputs=kernels.product(tokens, h, n) + loss,
        weights=kernels.product(n, h, tokens),
    )
