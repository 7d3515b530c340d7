"""Whether ranks that must hold the same weights do."""

import torch
from torch import Tensor

from megalite.comm.collectives import all_equal, all_gather_object
from megalite.train.build import Engine

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 20
_ODD = 0x5851F42D4C957F2D
"""The multiplier of Knuth's MMIX generator."""


def check_replicas(engine: Engine, when: str) -> None:
    """RuntimeError on every rank, with the first parameter that differs, unless replicas are equal bit by bit."""
    mesh, buffer = engine.mesh, engine.buffer
    buffer.wait_params()
    for group, words, slots in (
        (mesh.dp, "data parallel", buffer.slots),
        (mesh.tp, "tensor parallel", [slot for slot in buffer.slots if slot.kind.replicated]),
        (mesh.ends, "first and last pipeline", [slot for slot in buffer.slots if slot.kind.owes_ends]),
    ):
        ranges = [buffer.params[slot.range] for slot in slots]
        alike = all_equal(torch.stack([_digest(part) for part in ranges]), group) if slots else True
        if all(all_gather_object(alike, mesh.world)):
            continue
        name = next((s.name for s, part in zip(slots, ranges, strict=True) if not all_equal(_digest(part), group)), "")
        names = sorted({name for name in all_gather_object(name, mesh.world) if name})
        raise RuntimeError(
            f"{when}: {words} ranks, which must hold the same weights, differ in {names[0]}. "
            "A machine may be faulty, or this is a mistake of megalite's. Go on from the last checkpoint."
        )


def _digest(values: Tensor) -> Tensor:
    """A number [] int64 that changes with any bit, and with the order; it wraps around, as integers do."""
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for chunk in values.view(_BITS[values.element_size()]).split(_CHUNK):
        places = torch.arange(1, len(chunk) + 1, device=values.device)
        total = total * _ODD + (chunk.to(torch.int64) * (places * _ODD)).sum()
    return total
