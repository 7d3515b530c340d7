"""Saving beside training: a thread writes a copy of the state while the state moves on."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from megalite.checkpoint.boxes import volume
from megalite.checkpoint.format import Piece
from megalite.checkpoint.retention import Retention
from megalite.checkpoint.save import Held, Saved, assign, parts_of, write_planned
from megalite.comm.collectives import all_gather_object
from megalite.device import HostLink
from megalite.mesh import Group
from megalite.shard import Shard

_ALIGNED = 64  # bytes


class Background:
    """Saves the shards of one run, whose boxes are always the same, one save at a time.

    `world` must be a group that nothing else uses, and that moves what is on the host: its collectives run beside those
    of the training, in an order of their own.
    """

    def __init__(self, world: Group, device: torch.device) -> None:
        self.world, self.link = world, HostLink(device, overlap=True)
        self._plan: list[dict[Held, Piece]] = []
        self._copies: dict[Held, torch.Tensor] = {}
        """Memory of the host for what this rank writes, which each save uses again."""

    def save(
        self,
        root: Path,
        iteration: int,
        shards: Sequence[Shard],
        scalars: Mapping[str, Any],
        files: Mapping[str, bytes],
        retention: Retention | None,
    ) -> "Future[Saved]":
        """Copy the shards, and begin to save the copies as `save` does. The save before must be done.

        Every rank calls this; the outcome is what `save` returns or raises. The thread ends with the process: who does
        not wait for the outcome may get none.
        """
        mine = {part.held: part for part in parts_of(shards) if volume(part.box)}
        if not self._plan:
            self._plan = assign(all_gather_object(list(mine), self.world))
            self._copies = host_memory(list(self._plan[self.world.rank]), self.link)
        for held, copy in self._copies.items():
            self.link.to_host(mine[held].produce(), copy)
        self.link.wait_on_host()
        copied = {held: replace(mine[held], produce=partial(self._copies.__getitem__, held)) for held in self._copies}
        return in_thread(
            lambda: write_planned(root, iteration, copied, self._plan, scalars, files, self.world, retention)
        )


def in_thread(work: Callable[[], Saved]) -> "Future[Saved]":
    """What `work` will return or raise."""
    outcome: Future[Saved] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, name="saving", daemon=True).start()
    return outcome


def host_memory(boxes: Sequence[Held], link: HostLink) -> dict[Held, torch.Tensor]:
    """A tensor on the host for each box, all in one piece of memory."""
    *starts, size = accumulate((-(-held.nbytes // _ALIGNED) * _ALIGNED for held in boxes), initial=0)
    memory = link.host_memory(size, torch.uint8)
    return {
        held: memory[start : start + held.nbytes]
        .view(getattr(torch, held.dtype))
        .view([stop - first for first, stop in held.box])
        for held, start in zip(boxes, starts, strict=True)
    }
