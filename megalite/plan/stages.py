"""What each stage of a layout has of the model, dealt out as the trainer does."""

from functools import lru_cache

from megalite.arith.parameters import layer_matrices
from megalite.arith.part import Part
from megalite.config.size import ModelSize
from megalite.plan.layout import Layout
from megalite.schedule.partition import deal
from megalite.schedule.schedules import placement


def stage_parts(size: ModelSize, layout: Layout) -> list[Part]:
    """Each stage, in the order in which a micro-batch passes them."""
    stages = layout.pipeline * layout.chunks
    matrices, head = layer_matrices(size), size.hidden_size * size.vocab_size
    counts = _counts(size.num_layers, stages, layout.counted_ends, matrices, head)
    return [Part(layers=n, embedding=i == 0, loss=i == stages - 1) for i, n in enumerate(counts)]


def held_stages(size: ModelSize, layout: Layout) -> list[list[Part]]:
    """The stages of each pipeline rank."""
    held: list[list[Part]] = [[] for _ in range(layout.pipeline)]
    for part, rank in zip(stage_parts(size, layout), ranks_of_stages(layout), strict=True):
        held[rank].append(part)
    return held


def joined(held: list[Part]) -> Part:
    """Stages of one rank as one."""
    return Part(
        layers=sum(part.layers for part in held),
        embedding=any(part.embedding for part in held),
        loss=any(part.loss for part in held),
    )


def ranks_of_stages(layout: Layout) -> tuple[int, ...]:
    """The rank of each stage. What the trainer cannot run, other software places as 1F1B does."""
    if layout.schedule == "zb-v":
        return placement("zb-v", layout.pipeline, layout.chunks)
    return tuple(range(layout.pipeline)) * layout.chunks


@lru_cache(maxsize=4096)
def _counts(layers: int, stages: int, counted_ends: int, matrices: int, head: int) -> tuple[int, ...]:
    """As `partition` does without a layout of its own: the head weighs what it costs where layers do not divide."""
    held = [0] * stages
    held[0] += matrices * (counted_ends > 1)
    if counted_ends:
        held[-1] += matrices
    elif layers % stages:
        held[-1] += head
    return tuple(deal(layers, held, layer=matrices))
