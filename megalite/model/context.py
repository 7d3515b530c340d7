"""What one forward pass knows besides its activations."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from megalite.ops.attention import hidden_keys
from megalite.ops.document_attention import Documents, find_documents
from megalite.ops.dropout import Draw


class Cache(Protocol):
    """Keys and values of earlier tokens."""

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's keys and values [b, ng, s, hn] with the earlier ones in front."""
        ...


class NoCache:
    """Training and evaluation see whole sequences."""

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v


class KVCache:
    """All keys and values so far; generation feeds only what is new."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self._layers:
            past_k, past_v = self._layers[layer]
            k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        self._layers[layer] = (k, v)
        return k, v


@dataclass(frozen=True, kw_only=True)
class Context:
    """Of one micro-batch: where its tokens stand, how dropout draws (None: nothing is dropped), what came before."""

    position_ids: Tensor
    """[b, s] int64"""
    segment_ids: Tensor | None = None
    """[b, s] document of each token: attention stays within one"""
    draw: Draw | None = None
    cache: Cache = field(default_factory=NoCache)
    angles: tuple[Tensor, Tensor] | None = None
    """cos [s, b, 1, 1, r] and sin [s, b, 1, 1, r / 2] where positions are rotary: filled in by the model, once."""
    _masks: dict[tuple[int, int, int | None], Tensor | None] = field(init=False, repr=False, default_factory=dict)

    def hidden(self, queries: int, keys: int, *, window: int | None) -> Tensor | None:
        """What `hidden_keys` says of these tokens: made by the first layer that asks, shared by those like it."""
        case = (queries, keys, window)
        if case not in self._masks:
            self._masks[case] = hidden_keys(
                queries, keys, window=window, segment_ids=self.segment_ids, device=self.position_ids.device
            )
        return self._masks[case]

    @cached_property
    def documents(self) -> Documents | None:
        """Where documents lie, if attention stays within them: found by the first layer that asks."""
        return None if self.segment_ids is None else find_documents(self.segment_ids)
