"""Faults that implementations of this kind have had, each put into the sound program for one run."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from megalite.comm.collectives import Pending, all_reduce
from megalite.config.schema import Config
from megalite.data_parallel.buffer import GradBuffer
from megalite.data_parallel.finalize import reduce_owed
from megalite.gradient import WeightGrads
from megalite.mesh import ParallelMesh
from megalite.model import dropout, gpt
from megalite.pipeline_parallel.mail import Mail
from megalite.schedule.action import Action
from megalite.shard import Shard
from megalite.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megalite.tensor_parallel.layout import SequenceParallel, TensorParallel
from megalite.tensor_parallel.linear import RowParallelLinear
from megalite.train import step
from tests.parallel import harness


def _bias_before_the_sum(self: RowParallelLinear, x: Tensor) -> Tensor:
    y = sound_row_forward(self, x)
    return y + (self.layout.tp.size - 1) * self.bias


sound_row_forward = RowParallelLinear.forward


def _padding_counts(logits: Tensor, target: Tensor, *, shard: Any, **given: Any) -> Tensor:
    shard = copy(shard)
    shard.stop = shard.start + shard.rows
    return vocab_parallel_cross_entropy(logits, target, shard=shard, **given)


def _mask_of_this_rank(x: Tensor, p: float, *, rows: slice, **facts: Any) -> Tensor:
    return sound_dropout(x, p, rows=slice(0, x.shape[0]), **facts)


sound_dropout = dropout.hidden_dropout


@contextmanager
def _sent_too_early() -> Iterator[None]:
    # Sent and waited for: what is still under way may yet pick up the last writes, and hide the fault.
    with (
        patch.object(GradBuffer, "_full", lambda self, bucket: True),
        patch("megalite.train.build.start_all_reduce", lambda x, group: Pending(all_reduce(x, group))),
    ):
        yield


@contextmanager
def _mixed_up() -> Iterator[None]:
    sound, sent = Mail.post, list[Tensor]()

    def post(self: Mail, x: Tensor, action: Action, *, backward: bool) -> None:
        if backward:
            sent.append(x)
            x = sent[0]
        sound(self, x, action, backward=backward)

    with patch.object(Mail, "post", post):
        yield


@dataclass(frozen=True, kw_only=True)
class Fault:
    layout: str
    patch: Callable[[], AbstractContextManager[Any]]
    dropout: float = 0.0


FAULTS = {
    "missing all-reduce": Fault(
        layout="tp2", patch=lambda: patch.object(TensorParallel, "reduce", lambda self, x: Pending(x))
    ),
    "bias added on every rank": Fault(
        layout="tp2", patch=lambda: patch.object(RowParallelLinear, "forward", _bias_before_the_sum)
    ),
    "norm gradients not summed under sequence parallelism": Fault(
        layout="tp2-sp", patch=lambda: patch.object(step, "reduce_owed", lambda buffer, mesh: None)
    ),
    "padded rows in the softmax": Fault(
        layout="tp2", patch=lambda: patch.object(gpt, "vocab_parallel_cross_entropy", _padding_counts)
    ),
    "gradients not summed over dp": Fault(
        layout="dp2",
        patch=lambda: patch("megalite.train.build.start_all_reduce", lambda x, group: Pending(x)),
    ),
    "sharded gradients not summed over dp": Fault(
        layout="dp2-sharded",
        patch=lambda: patch("megalite.train.build.start_reduce_scatter", lambda x, group, out: Pending(out)),
    ),
    "tied embeddings not summed over the ends of the pipeline": Fault(
        layout="pp2",
        patch=lambda: patch.object(
            step, "reduce_owed", lambda buffer, mesh: reduce_owed(buffer, replace(mesh, ends=mesh.tp))
        ),
    ),
    "weight gradients of a split backward left out": Fault(
        layout="tp2-sp-pp2", patch=lambda: patch.object(WeightGrads, "compute_kept", lambda self: self._kept.popleft())
    ),
    "the gradient of another micro-batch sent back": Fault(layout="pp2", patch=_mixed_up),
    "a bucket sent before its last write": Fault(layout="dp2-overlap", patch=_sent_too_early),
    "dropout by local instead of global position": Fault(
        layout="tp2-sp", patch=lambda: patch.object(dropout, "hidden_dropout", _mask_of_this_rank), dropout=0.1
    ),
    "input gradient not summed": Fault(
        layout="tp2-sp",
        patch=lambda: patch.object(
            SequenceParallel, "reduce", lambda self, x: Pending(x.chunk(self.tp.size)[self.tp.rank])
        ),
    ),
}


def gradients_with(mesh: ParallelMesh, fault: str, settings: Config, dtype: torch.dtype) -> tuple[float, list[Shard]]:
    """`harness.gradients` with the fault in place."""
    with FAULTS[fault].patch():
        return harness.gradients(mesh, settings, dtype)
