"""Who takes part in a pipeline: megalite's stages and the same in torch.distributed.pipelining, one rank of them.

A step trains MICRO_BATCHES micro-batches, which are cut from the batch of `Sizes`.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from contestants import (
    BETAS,
    CLIP,
    EPS,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Step,
    alone,
    config_of,
    engine_of,
    megalite,
    plain_model,
    step_of,
)
from plain import Plain, Sizes
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from megalite.config.parallel import Parallel
from megalite.schedule.action import Action
from megalite.schedule.partition import Stage, partition
from megalite.schedule.schedules import placement
from megalite.schedule.trace import Event

Build = Callable[[Sizes, int], Step]
LAYERS, MICRO_BATCHES, RANKS = 4, 4, 2


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How layers are cut into stages for one schedule of megalite, and the one of torch that is most like it.

    A head of 8192 rows costs as much as two or three of the layers: the rank that has it gets one layer.
    """

    layout: str
    theirs: type[Any]

    @property
    def chunks(self) -> int:
        """Stages on each rank."""
        return (self.layout.count("|") + 1) // RANKS


CUTS = {
    "1f1b": Cut(layout="Ettt|tL", theirs=Schedule1F1B),
    "zb-h1": Cut(layout="Ettt|tL", theirs=ScheduleInterleavedZeroBubble),
    "interleaved": Cut(layout="Et|t|tt|L", theirs=ScheduleInterleaved1F1B),
    "zb-v": Cut(layout="Et|tt|t|L", theirs=ScheduleZBVZeroBubble),
}
"""By megalite's schedules."""


def parallel(schedule: str) -> Parallel:
    """The flags of a schedule."""
    return Parallel(
        pipeline_model_parallel_size=RANKS,
        pipeline_schedule=schedule,
        pipeline_model_parallel_layout=CUTS[schedule].layout,
    )


class Part(nn.Module):
    """The layers of one stage of the plain model, with its ends where the stage has them."""

    def __init__(self, whole: Plain, stage: Stage) -> None:
        super().__init__()
        self.word = whole.word if stage.embedding else None
        self.position = whole.position if stage.embedding else None
        self.layers = nn.ModuleList(whole.layers[number] for number in stage.layers)
        self.norm, self.head = (whole.norm, whole.head) if stage.loss else (nn.Identity(), nn.Identity())
        self.register_buffer("places", whole.places, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.word is not None and self.position is not None:
            x = self.word(x) + self.position(self.places)
        for layer in self.layers:
            x = layer(x, None)
        return self.head(self.norm(x))


def torch_step(sizes: Sizes, rank: int, schedule: str) -> Step:
    """A training step of torch.distributed.pipelining: the stages, the sums and the update that megalite makes.

    Outputs are not kept, gradients not scaled afterwards, and the loss travels with the norm: the best that it offers.
    """
    config, cut, whole = config_of(sizes, parallel(schedule)), CUTS[schedule], plain_model(sizes)
    stages = partition(config.model, config.parallel, vocab_size=sizes.vocab)
    placed = placement(schedule, RANKS, cut.chunks)
    mine = [stage for stage in stages if placed[stage.number] == rank]
    parts = nn.ModuleList(Part(whole, stage) for stage in mine)
    held = [
        PipelineStage(part, stage.number, len(stages), torch.device("cpu"))
        for part, stage in zip(parts, mine, strict=True)
    ]
    given = held[0] if cut.theirs is Schedule1F1B else held
    pipeline = cut.theirs(given, MICRO_BATCHES, loss_fn=mean_loss, scale_grads=False)
    parameters = list(parts.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS, fused=True)
    tied = whole.word.weight if placed[0] != placed[-1] else None
    counted = [p for p in parameters if p is not tied or placed[0] == rank]

    def step(tokens: Tensor, labels: Tensor) -> float:
        losses: list[Tensor] = []
        first, last = placed[0] == rank, placed[-1] == rank
        pipeline.step(*[tokens] * first, target=labels if last else None, losses=losses, return_outputs=False)
        if tied is not None:
            dist.all_reduce(tied.grad)
        norm = nn.utils.get_total_norm([p.grad for p in counted if p.grad is not None], foreach=True)
        totals = torch.stack([norm.square(), torch.stack(losses).sum() if losses else torch.zeros(())])
        dist.all_reduce(totals)
        nn.utils.clip_grads_with_norm_(parameters, CLIP, totals[0].sqrt(), foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = totals[1].item()
        assert math.isfinite(loss)
        return loss

    return step


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """A micro-batch's part of the mean over all of them."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / MICRO_BATCHES


class Diary:
    """A rank of megalite that notes when it does what; the ranks of one machine share its clock."""

    def __init__(self, sizes: Sizes, rank: int, schedule: str) -> None:
        self.rank, self.number = rank, 0
        self.events: list[Event] = []
        config = config_of(sizes, parallel(schedule), micro_batches=MICRO_BATCHES)
        engine = engine_of(config, vocab=sizes.vocab, rank=rank, ranks=RANKS)
        self._step = step_of(replace(engine, watch=self._watch), sizes, micro_batches=MICRO_BATCHES)

    def step(self, tokens: Tensor, labels: Tensor) -> None:
        """Train one step."""
        self.number += 1
        self._step(tokens, labels)

    @contextmanager
    def _watch(self, action: Action) -> Iterator[None]:
        begin = time.perf_counter_ns() / 1000
        yield
        duration = time.perf_counter_ns() / 1000 - begin
        self.events.append(Event(action=action, rank=self.rank, step=self.number, begin=begin, duration=duration))


def ours(schedule: str) -> Build:
    """How a rank of megalite is built."""
    flags = parallel(schedule)
    return lambda sizes, rank: megalite(sizes, rank=rank, ranks=RANKS, parallel=flags, micro_batches=MICRO_BATCHES)


def theirs(schedule: str) -> Build:
    """How a rank of torch.distributed.pipelining is built."""
    return lambda sizes, rank: torch_step(sizes, rank, schedule)


CONTESTANTS: dict[str, Build] = {
    "megalite": lambda sizes, rank: megalite(sizes, rank=rank, micro_batches=MICRO_BATCHES),
    "plain torch": lambda sizes, rank: alone(plain_model(sizes), micro_batches=MICRO_BATCHES),
    **{f"megalite {schedule}": ours(schedule) for schedule in CUTS},
    **{cut.theirs.__name__: theirs(schedule) for schedule, cut in CUTS.items()},
}
"""Name: how one of its ranks is built."""
