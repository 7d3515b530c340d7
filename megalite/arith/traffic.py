"""Collectives of one training step in closed form: how many, and how many payload bytes, per group.

The payload is the full tensor, as `observe.traffic` counts it: of an all-gather its result, of a reduce-scatter its
input. A group of one rank sends nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megalite.arith.parameters import count_parameters, head_norm_parameters
from megalite.arith.part import Part, whole
from megalite.config.size import ModelSize


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Calls and payload bytes of one collective."""

    calls: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Again:
    """What a part computes again in the backward of each micro-batch."""

    blocks: int
    """Attentions and MLPs, of which each has one column and one row linear."""
    inputs: int
    """Saved inputs of which each tp rank has a part."""
    input_bytes: int
    """Of an element of those."""


NOTHING_AGAIN = Again(blocks=0, inputs=0, input_bytes=0)


def tensor_parallel_traffic(
    size: ModelSize,
    part: Part | None = None,
    again: Again = NOTHING_AGAIN,
    *,
    neighbours: int = 0,
    tensor_parallel_size: int,
    sequence_parallel: bool,
    micro_batch_size: int,
    num_micro_batches: int,
    param_bytes: int,
    owed: int | None = None,
) -> dict[str, Sent]:
    """What the tp group sends in one step of forward, backward and gradient finalisation, by collective, for the whole
    model or for one rank's part of it.

    A layer has two column linears, qkv and fc1, and two row linears, out and fc2; the head is one more column linear.

    - Column, forward: its input is gathered (sequence parallel: all-gather). Backward: the input is gathered again for
      dW (all-gather), and dx is summed (reduce-scatter; else all-reduce).
    - Row, forward: its output is summed (reduce-scatter; else all-reduce). Backward: dy is gathered (all-gather).
    - Embedding, forward: the partial look-ups are summed as a row's output; backward as a row's.
    - Loss: one all-gather of three fp32 numbers per token, (max, sum, target logit).
    - Norms of queries and keys, once per step: each rank has some heads, so their gradients are summed in one
      all-reduce (with sequence parallelism, in the one that follows).
    - Sequence parallel, once per step: the gradients of everything replicated (norms, biases of row linears, learned
      positions), in one all-reduce. `owed` says how many elements of all these a rank owns; None: it owns all.
    - Without sequence parallelism, what comes from another stage: the ranks got a part of it each, and gather it.
      `neighbours` is how often a stage of this rank is next to one of another rank.
    - What is computed again does the collectives of its forward once more; a saved input that is cut over the ranks is
      gathered first.
    """
    part = part or whole(size)
    t, m, layers = tensor_parallel_size, num_micro_batches, part.layers
    if t == 1:
        return {}
    tokens = size.seq_length * micro_batch_size
    activation = tokens * size.hidden_size * param_bytes
    loss = tokens * t * 3 * max(param_bytes, 4) * part.loss
    columns, rows = 2 * layers + part.loss, 2 * layers + part.embedding
    if not sequence_parallel:
        sums = m * (columns + rows + again.blocks)
        of_heads = (head_norm_parameters(size) * layers if owed is None else owed) * max(param_bytes, 4)
        received = m * neighbours * _is_cut(size, micro_batch_size, t)
        return _without_none(
            all_reduce=Sent(calls=sums + (of_heads > 0), nbytes=sums * activation + of_heads),
            all_gather=Sent(
                calls=m * (part.loss + again.inputs) + received,
                nbytes=m * (loss + again.inputs * tokens * size.hidden_size * again.input_bytes)
                + received * activation,
            ),
        )
    gathers, scatters = m * (2 * columns + rows + again.blocks), m * (columns + rows + again.blocks)
    replicas = (count_parameters(size, part).replicated if owed is None else owed) * max(param_bytes, 4)
    return _without_none(
        all_gather=Sent(calls=gathers + m * part.loss, nbytes=gathers * activation + m * loss),
        reduce_scatter=Sent(calls=scatters, nbytes=scatters * activation),
        all_reduce=Sent(calls=int(replicas > 0), nbytes=replicas),
    )


def pipeline_traffic(
    size: ModelSize,
    *,
    neighbours: int,
    tensor_parallel_size: int,
    sequence_parallel: bool,
    micro_batch_size: int,
    num_micro_batches: int,
    hidden_bytes: int,
) -> dict[str, Sent]:
    """What one rank sends and receives along the pipeline in one step: 2m messages at an end, 4m in the middle.

    To and from each of its neighbours goes one tensor each way and micro-batch: an activation to the stage after, the
    gradient of one to the stage before. Each tensor parallel rank sends a part of it, `hidden_bytes` an element.
    """
    cut = sequence_parallel or _is_cut(size, micro_batch_size, tensor_parallel_size)
    elements = size.seq_length * micro_batch_size * size.hidden_size // (tensor_parallel_size if cut else 1)
    calls = num_micro_batches * neighbours
    one_way = Sent(calls=calls, nbytes=calls * elements * hidden_bytes)
    return _without_none(send=one_way, recv=one_way)


def ends_traffic(*, owed: int, grad_bytes: int) -> dict[str, Sent]:
    """What the two ends of a pipeline send in one step where both hold the tied embeddings: the sum of their gradients,
    of which a rank owns `owed` elements.
    """
    return _without_none(all_reduce=Sent(calls=int(owed > 0), nbytes=owed * grad_bytes))


def data_parallel_traffic(
    *,
    parameters: int,
    data_parallel_size: int,
    buckets: int,
    grad_bytes: int,
    param_bytes: int,
    sharded: bool,
    sums: int = 1,
    ordered: bool = False,
) -> dict[str, Sent]:
    """What the dp group sends in one step: one all-reduce per gradient bucket, together every gradient on the rank.

    With sharded states it is one reduce-scatter of gradients and one all-gather of parameters per bucket instead;
    `parameters` counts the padding of the buckets. `sums`: how often a step sums gradients, where they are sharded once
    per micro-batch. `ordered`: every rank gathers what all have, and adds it up itself.
    """
    if data_parallel_size == 1:
        return {}
    copies = data_parallel_size if ordered else 1
    grads = Sent(calls=sums * buckets, nbytes=sums * copies * parameters * grad_bytes)
    params = Sent(calls=buckets, nbytes=parameters * param_bytes)
    if ordered:
        return {"all_gather": added(grads, params) if sharded else grads}
    return {"reduce_scatter": grads, "all_gather": params} if sharded else {"all_reduce": grads}


def whole_matrix_traffic(
    *,
    buckets: Sequence[int],
    matrices: Sequence[int],
    data_parallel_size: int,
    tensor_parallel_size: int,
    main_bytes: int,
) -> tuple[dict[str, Sent], dict[str, Sent]]:
    """What an update of whole matrices (Muon) gathers besides, over dp and over tp: of each bucket with matrices all
    that dp ranks own, and of each matrix of which this rank owns something what tp ranks have.

    `buckets` are the lengths of those, where states are sharded; `matrices` those of the parts on this rank.
    """
    dp, tp = sum(buckets), tensor_parallel_size * sum(matrices)
    return (
        _without_none(all_gather=Sent(calls=len(buckets) * (data_parallel_size > 1), nbytes=dp * main_bytes)),
        _without_none(all_gather=Sent(calls=len(matrices) * (tensor_parallel_size > 1), nbytes=tp * main_bytes)),
    )


def added(*parts: Sent) -> Sent:
    """All of them together."""
    return Sent(calls=sum(part.calls for part in parts), nbytes=sum(part.nbytes for part in parts))


def joined(*parts: dict[str, Sent]) -> dict[str, Sent]:
    """The same, collective by collective."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: added(*(part[name] for part in parts if name in part)) for name in names}


def _is_cut(size: ModelSize, micro_batch_size: int, tensor_parallel_size: int) -> bool:
    """Whether tensor parallel ranks share the sending of an activation; one that they do not divide is sent whole."""
    elements = size.seq_length * micro_batch_size * size.hidden_size
    return tensor_parallel_size > 1 and elements % tensor_parallel_size == 0


def _without_none(**collectives: Sent) -> dict[str, Sent]:
    return {name: sent for name, sent in collectives.items() if sent.calls}
