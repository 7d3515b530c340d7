"""The settings of memory, and what they come to for a layer and a stage; config/schema.py says how fields are read."""

from dataclasses import dataclass
from typing import Literal

from megalite.config.field import option


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is computed again instead of kept."""

    recompute_granularity: Literal["full", "selective"] | None = None
    """Compute activations again in backward: of whole layers, or of the --recompute-modules in each layer."""
    recompute_method: Literal["uniform", "block"] | None = None
    """Which layers under full: all, in groups of --recompute-num-layers; or that many, the first of each pipeline
    stage, one by one. Unset: uniform."""
    recompute_num_layers: int | None = option(at_least=1)
    """Layers of a group, of which only the input is kept; or under block, layers that are computed again. Unset: 1."""
    recompute_modules: tuple[str, ...] = ()
    """What of each layer under selective: core_attn, mlp, layernorm. Unset: core_attn."""
    distribute_saved_activations: bool = False
    """Keep a part of each saved input on each tensor parallel rank, under full."""


MODULES = ("core_attn", "layernorm", "mlp")
"""What of a layer can be computed again by itself."""


def recomputed_modules(memory: Memory) -> frozenset[str]:
    """The modules that are computed again in every layer."""
    if memory.recompute_granularity != "selective":
        return frozenset()
    return frozenset(memory.recompute_modules or ("core_attn",))


def recomputed_regions(memory: Memory, layers: int) -> list[int]:
    """Of the layers of one stage, the first in regions of so many, each computed again as a whole; the rest is kept."""
    if memory.recompute_granularity != "full":
        return []
    count = memory.recompute_num_layers or 1
    if memory.recompute_method == "block":
        return [1] * min(count, layers)
    return [min(count, layers - first) for first in range(0, layers, count)]
