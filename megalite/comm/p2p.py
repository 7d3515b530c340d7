"""Messages between two ranks: the activations and gradients that pass along a pipeline."""

import torch
import torch.distributed as dist
from torch import Tensor

from megalite.comm.collectives import Pending, among, start_all_gather
from megalite.mesh import Group


class Link:
    """Sends tensors along the ranks of `line`.

    Where the ranks of `copies` hold one and the same tensor, each sends its part of it and the receivers gather the
    parts: a tensor crosses the line once, not once for each copy. A group of one rank sends tensors whole.
    """

    def __init__(self, line: Group, copies: Group) -> None:
        self.line, self.copies = line, copies

    def send(self, x: Tensor, *, to: int, tag: int) -> Pending:
        """Begin to send x to the position `to` of the line; it must stay as it is until the result was waited for."""
        flat = x.reshape(-1)
        if self._is_cut(x):
            flat = flat.chunk(self.copies.size)[self.copies.rank]
        self._count("send", flat)
        with among(self.line):
            return Pending(x, dist.isend(flat, self.line.ranks[to], group=self.line.handle, tag=tag), self.line)

    def receive(self, into: Tensor, *, source: int, tag: int) -> Pending:
        """Begin to receive, from the position `source` of the line, a tensor like `into`, which may be used for it."""
        is_cut = self._is_cut(into)
        part = into.new_empty(into.numel() // self.copies.size) if is_cut else into
        self._count("recv", part)
        with among(self.line):
            work = dist.irecv(part, self.line.ranks[source], group=self.line.handle, tag=tag)
        arriving = Pending(part, work, self.line)
        return _Joined(into.shape, arriving, self.copies) if is_cut else arriving

    def _is_cut(self, x: Tensor) -> bool:
        return self.copies.size > 1 and x.numel() % self.copies.size == 0

    def _count(self, verb: str, x: Tensor) -> None:
        self.line.traffic.add(verb, x.numel() * x.element_size())


class _Joined(Pending):
    """A tensor whose parts arrive at the ranks of a group. All of them wait for it at one point of their programs."""

    def __init__(self, shape: torch.Size, arriving: Pending, copies: Group) -> None:
        self._shape, self._arriving, self._copies = shape, arriving, copies

    @property
    def is_done(self) -> bool:
        return self._arriving.is_done

    def wait(self) -> Tensor:
        return start_all_gather(self._arriving.wait(), self._copies).wait().view(self._shape)
