"""Bytes of each pipeline rank at its peak, by kind."""

from dataclasses import dataclass, fields
from fractions import Fraction

from megalite.arith.memory import Keeping, layer_activations, region_activations, state_bytes
from megalite.arith.parameters import count_parameters
from megalite.arith.part import Part
from megalite.config.size import ModelSize
from megalite.plan.layout import Layout, Practice
from megalite.plan.stages import held_stages, joined

MATRIX_BYTES = 5
"""For each element of the largest matrix of a layer, while its gradient is made and added in 32 bits."""


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes on one pipeline rank."""

    params: int
    main_params: int
    main_grads: int
    moments: int
    lent: int
    """Where gradients are until they are summed, if only shards of them are kept."""
    activations: int
    """Of all micro-batches in flight."""
    recomputed: int
    """Of a layer that is computed again, as far as it needs more than the logits did before."""
    logits: int
    """And their gradient."""
    workspace: int
    """Of the software, and what lives for a moment."""

    @property
    def states(self) -> int:
        return self.params + self.main_params + self.main_grads + self.moments

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def memory_of_ranks(size: ModelSize, layout: Layout, practice: Practice) -> list[RankMemory]:
    """Each pipeline rank, which all tensor and data parallel ranks at its place are like. `size` has the padded
    vocabulary.
    """
    return [rank_memory(size, layout, practice, held, rank) for rank, held in enumerate(held_stages(size, layout))]


def peak_memory(size: ModelSize, layout: Layout, practice: Practice) -> int:
    """Bytes on the rank with most: one of the ends or the second, for those between hold no more than it."""
    held = held_stages(size, layout)
    ranks = {0, min(1, layout.pipeline - 1), layout.pipeline - 1}
    return max(rank_memory(size, layout, practice, held[rank], rank).total for rank in ranks)


def in_flight(layout: Layout, rank: int) -> int:
    """Stages' worth of micro-batches of which a rank keeps anything, at most."""
    p, v, m = layout.pipeline, layout.chunks, layout.num_micro_batches
    match layout.schedule:
        case "gpipe":
            return m
        case "1f1b":
            return min(m, p - rank)
        case "interleaved":
            return min(m * v, 2 * (p - 1 - rank) + (v - 1) * min(p, m) + 1)
        case "zb-h1":
            return min(m, p)
        case "zb-h2":
            return min(m, 2 * p - 1)
        case _:
            return min(2 * m, 2 * p)


def keeping(layout: Layout, practice: Practice) -> Keeping:
    """What a layer keeps of one micro-batch here."""
    return Keeping(
        micro_batch_size=layout.micro_batch_size,
        param_bytes=practice.param_bytes,
        hidden_bytes=practice.param_bytes,
        tensor_parallel_size=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        core=practice.attention,
        dropout=practice.dropout,
        recomputed=frozenset(("core_attn",)) if layout.recompute == "selective" else frozenset(),
    )


def rank_memory(size: ModelSize, layout: Layout, practice: Practice, held: list[Part], rank: int) -> RankMemory:
    """One pipeline rank, with the stages that it holds."""
    t, c, beta = layout.tensor, layout.context, practice.param_bytes
    part = joined(held)
    parameters = count_parameters(size, part).per_rank(t)
    shards = layout.data * c if layout.zero else 1
    states = state_bytes(parameters, param_bytes=beta, moments=Fraction(2), shards=shards)
    here = 1 - layout.offload
    tokens = size.seq_length * layout.micro_batch_size / c
    whole, first = _layer(size, layout, practice)
    again = layout.recomputed(part.layers, len(held))
    kept = again * first + (part.layers - again) * whole
    flying = in_flight(layout, rank) / len(held) if layout.pipeline > 1 else 1
    gradient = 0 if practice.software == "megalite" else max(beta, 4)  # ours takes the place of the logits
    waiting = min(layout.num_micro_batches, layout.pipeline) if layout.schedule.startswith("zb") else 1
    logits = part.loss * waiting * tokens * size.vocab_size / t * (beta + gradient)
    matrix = max(size.fc1_width, size.qkv_width, size.query_width) * size.hidden_size / t * practice.wide_gradients
    return RankMemory(
        params=states.params // (layout.data if layout.zero == 3 else 1),
        main_params=round(states.main_params * here),
        main_grads=states.main_grads // (layout.data if layout.zero >= 2 else 1),
        moments=round(states.moments * here),
        lent=4 * _lent(size, layout, part, parameters) if layout.zero == 2 else 0,
        activations=round(flying * kept),
        recomputed=max(0, round(whole - first - logits)) if again else 0,
        logits=round(logits),
        workspace=round(practice.workspace + matrix * MATRIX_BYTES),
    )


def _lent(size: ModelSize, layout: Layout, part: Part, parameters: int) -> int:
    """Elements of two neighbouring buckets of gradients, and of tied embeddings, which have one of their own.

    A matrix larger than a bucket makes a bucket of its size.
    """
    matrix = size.vocab_size * size.hidden_size // layout.tensor * (part.embedding or part.loss)
    most = max(40_000_000, 1_000_000 * layout.data)
    if size.tied_embeddings:
        return min(2 * most, parameters - matrix) + matrix
    return min(max(most, matrix) + most, parameters)


def _layer(size: ModelSize, layout: Layout, practice: Practice) -> tuple[float, float]:
    """What a layer keeps of one micro-batch, and what one keeps that is computed again."""
    how = keeping(layout, practice)
    if practice.software == "megalite":
        return sum(layer_activations(size, how).values()), sum(region_activations(size, how).values())
    t, beta = layout.tensor, practice.param_bytes
    tokens = size.seq_length * layout.micro_batch_size / layout.context
    rows = tokens / t if layout.sequence_parallel else tokens
    h, queries, f = size.hidden_size, size.query_width, size.ffn_hidden_size
    heads = size.qkv_width + queries * (2 if practice.attention == "fused" and practice.dropout else 1)
    square = 0.0
    if practice.attention != "fused" and layout.recompute != "selective":
        square = tokens * size.seq_length * size.num_attention_heads / t
        square *= 2 * beta + 1 if practice.attention == "dropout" else beta
    whole = rows * h * (4 * beta + 2 * practice.dropout) + square
    whole += tokens / t * beta * (heads + size.fc1_width + f)
    return whole, rows * h * beta
