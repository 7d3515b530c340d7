"""Where numbers stop being finite."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megalite.comm.collectives import all_gather_object
from megalite.data.batch import MicroBatch
from megalite.optimizer.clip import holders
from megalite.pipeline_parallel.executor import execute, unwatched
from megalite.train.build import Engine
from megalite.train.chunk import Pass


def not_finite(engine: Engine, microbatches: Sequence[MicroBatch], *, loss: float, norm: float, step: int) -> str:
    """What is wrong with an iteration whose loss or gradient is not finite, as far as the first bad tensor.

    Every rank must call it, before the weights are touched: the forward pass is run again, and looked at.
    """
    output = first_output(engine, microbatches, step)
    buffer = engine.buffer
    bad = [piece.slot.name for piece in buffer.pieces if not buffer.grads.of(piece).isfinite().all()]
    named = [name for names in all_gather_object(bad, holders(buffer, engine.mesh)) for name in names]
    if output:
        what = f"the first output that is not finite is that of {output}"
    elif named:
        what = f"every output is finite, but {len(named)} gradients are not, {named[-1]} among them"
    else:
        what = "outputs and gradients are finite"
    scale = engine.loss_scale.value
    scaled = f" at loss scale {scale:g}, which may not fall further" if scale != 1 and math.isfinite(loss) else ""
    return (
        f"iteration {step}: loss {loss}, gradient norm {norm}{scaled}; {what}. "
        "The weights are still those of the iteration before. Try a lower --lr, a longer warm-up, or fp32; "
        f"--iterations-to-skip {step} passes over this batch."
    )


def first_output(engine: Engine, microbatches: Sequence[MicroBatch], step: int) -> str:
    """The module, the innermost and the earliest, whose output is not finite, and the rank; nothing if all are."""
    found: list[tuple[int, str]] = []

    def look(stage: int, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not output.isfinite().all():
                found.append((stage, name))

        return hook

    hooks = [
        module.register_forward_hook(look(stage, name))
        for stage, chunk in engine.stages.items()
        for name, module in chunk.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            chunks = {stage: Pass(engine=engine, stage=stage, step=step) for stage in engine.stages}
            execute(engine.evaluation(len(microbatches)), chunks, microbatches, engine.mail, unwatched)
    finally:
        for hook in hooks:
            hook.remove()
    # A later stage may have met in an earlier micro-batch what an earlier stage gave it.
    first = min(found, key=lambda place: place[0], default=None)
    places = [
        (place, rank) for rank, place in enumerate(all_gather_object(first, engine.mesh.world)) if place is not None
    ]
    if not places:
        return ""
    (_, name), rank = min(places, key=lambda found: found[0][0])
    return f"{name} on rank {rank}"
