"""Collectives of one training step in closed form: how many, and how many payload bytes, per group.

The payload is the full tensor, as `observe.traffic` counts it: of an all-gather its result, of a reduce-scatter its
input. A group of one rank sends nothing.
"""

from dataclasses import dataclass

from megalite.arith.parameters import count_parameters, head_norm_parameters
from megalite.config.size import ModelSize


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Calls and payload bytes of one collective."""

    calls: int
    nbytes: int


def tensor_parallel_traffic(
    size: ModelSize,
    *,
    tensor_parallel_size: int,
    sequence_parallel: bool,
    micro_batch_size: int,
    num_micro_batches: int,
    param_bytes: int,
) -> dict[str, Sent]:
    """What the tp group sends in one step of forward, backward and gradient finalisation, by collective.

    A layer has two column linears, qkv and fc1, and two row linears, out and fc2; the head is one more column linear.

    - Column, forward: its input is gathered (sequence parallel: all-gather). Backward: the input is gathered again for
      dW (all-gather), and dx is summed (reduce-scatter; else all-reduce).
    - Row, forward: its output is summed (reduce-scatter; else all-reduce). Backward: dy is gathered (all-gather).
    - Embedding, forward: the partial look-ups are summed as a row's output; backward as a row's.
    - Loss: one all-gather of three fp32 numbers per token, (max, sum, target logit).
    - Norms of queries and keys, once per step: each rank has some heads, so their gradients are summed in one
      all-reduce (with sequence parallelism, in the one that follows).
    - Sequence parallel, once per step: the gradients of everything replicated (norms, biases of row linears, learned
      positions), in one all-reduce.
    """
    t, m, layers = tensor_parallel_size, num_micro_batches, size.num_layers
    if t == 1:
        return {}
    tokens = size.seq_length * micro_batch_size
    activation = tokens * size.hidden_size * param_bytes
    loss = tokens * t * 3 * max(param_bytes, 4)
    columns, rows = 2 * layers + 1, 2 * layers + 1
    if not sequence_parallel:
        sums = m * (columns + rows)
        of_heads = head_norm_parameters(size) * layers * max(param_bytes, 4)
        return {
            "all_reduce": Sent(calls=sums + (of_heads > 0), nbytes=sums * activation + of_heads),
            "all_gather": Sent(calls=m, nbytes=m * loss),
        }
    gathers, scatters = m * (2 * columns + rows), m * (columns + rows)
    return {
        "all_gather": Sent(calls=gathers + m, nbytes=gathers * activation + m * loss),
        "reduce_scatter": Sent(calls=scatters, nbytes=scatters * activation),
        "all_reduce": Sent(calls=1, nbytes=count_parameters(size).replicated * max(param_bytes, 4)),
    }


def data_parallel_traffic(
    *, parameters: int, data_parallel_size: int, buckets: int, grad_bytes: int
) -> dict[str, Sent]:
    """What the dp group sends in one step: one all-reduce per gradient bucket, together every gradient on the rank."""
    if data_parallel_size == 1:
        return {}
    return {"all_reduce": Sent(calls=buckets, nbytes=parameters * grad_bytes)}
