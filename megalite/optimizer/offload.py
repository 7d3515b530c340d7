"""Main params, states and their update on the host: in its memory, or on a disk of which a few tiles are in memory.

In a step a tile's gradient goes to the host, its main params and states are updated there, and its params come back
(Ren et al. 2021, ZeRO-Offload; from a disk: Rajbhandari et al. 2021, ZeRO-Infinity). The update is the one that the
device would make, bit for bit.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from megalite.arith.buckets import ALIGNED, length
from megalite.data_parallel.buffer import GradBuffer
from megalite.data_parallel.layout import Segment
from megalite.device import HostLink
from megalite.optimizer.spill import SpillFile
from megalite.optimizer.states import Resident, Update, part

TILE = 1 << 20
"""Elements that are updated at once."""
assert TILE % ALIGNED == 0


class OnHost(Resident):
    """Main params, always a copy, and states in the memory of the host.

    Where `overlap`, gradients leave for the host as soon as a bucket's sums are in, and params come back while the next
    tile is updated; otherwise each tile's leave when it is its turn.
    """

    memory = "host"

    def __init__(
        self, buffer: GradBuffer, segments: Sequence[Segment], names: Sequence[str], *, link: HostLink, overlap: bool
    ) -> None:
        super().__init__(buffer, segments, names)
        self.link, self.overlap = link, overlap
        self.tiles = [
            part(segment, start, min(start + TILE, length(segment.local)))
            for segment in segments
            for start in range(0, length(segment.local), TILE)
        ]
        self.grads = link.host_memory(self.size if overlap else min(TILE, self.size), buffer.grads.vector.dtype)
        """Of all tiles where they leave early, or of one."""
        self._taken: set[int] = set()
        if overlap:
            buffer.grads.leaving.append(self)

    @property
    def staging(self) -> int:
        """Bytes of host memory through which gradients and tiles pass."""
        return self.grads.nbytes

    @property
    def note(self) -> str:
        return f"Of {self.size:,} parameters main parameters and optimizer states are on the host{self._where}."

    @property
    def _where(self) -> str:
        return ""

    def _allocate(self) -> dict[str, Tensor]:
        return {name: torch.zeros(self.size, dtype=self.dtype) for name in ("main", *self.names)}

    def take(self, bucket: slice) -> None:
        """Copy the gradients of a bucket, but for those to which sums over tp or the ends are still owed."""
        for number, tile in enumerate(self.tiles):
            inside = bucket.start <= tile.range.start and tile.range.stop <= bucket.stop
            if inside and not tile.kind.owes_tp and not tile.kind.owes_ends:
                self.link.to_host(self.buffer.grads.of(tile), self.at(self.grads, tile.local))
                self._taken.add(number)

    def scale(self, factor: float) -> None:
        """Multiply what was taken."""
        self.link.wait_on_host()
        for number in self._taken:
            self.at(self.grads, self.tiles[number].local).mul_(factor)

    def _grad(self, number: int) -> Tensor:
        """A tile's gradient on the host."""
        tile = self.tiles[number]
        target = self.at(self.grads, tile.local) if self.overlap else self.grads[: length(tile.local)]
        if number not in self._taken:
            self.link.to_host(self.buffer.grads.of(tile), target)
            self.link.wait_on_host()
        return target

    def update(self, apply: Update) -> None:
        self.link.wait_on_host()  # for what was taken
        for number, (main, *states) in enumerate(self._tiles()):
            tile = self.tiles[number]
            apply(tile, main, self._grad(number), states)
            self.link.to_device(main, self.buffer.params[tile.range])
        self._taken.clear()
        self.link.wait_on_device()

    def _tiles(self) -> Iterator[list[Tensor]]:
        """For each tile its main params and states, which are kept as they are left."""
        for tile in self.tiles:
            yield [self.at(vector, tile.local) for vector in self.vectors.values()]

    def reload_main(self) -> None:
        for segment in self.segments:
            self.at(self.vectors["main"], segment.local).copy_(self.buffer.params[segment.range])


class OnDisk(OnHost):
    """The same in a file, each vector after the other. A step reads and writes all of it once, by a thread of its own:
    a tile while another is updated."""

    memory = "disk"

    def __init__(
        self,
        buffer: GradBuffer,
        segments: Sequence[Segment],
        names: Sequence[str],
        *,
        link: HostLink,
        overlap: bool,
        folder: Path,
        rank: int,
        ranks: int,
    ) -> None:
        super().__init__(buffer, segments, names, link=link, overlap=overlap)
        self.kinds = ("main", *names)
        self.file = SpillFile(folder, rank, self.size * len(self.kinds) * self.dtype.itemsize, ranks=ranks)
        tile = min(TILE, self.size)
        self._sets = [[torch.empty(tile, dtype=self.dtype) for _ in self.kinds] for _ in range(2)]

    @property
    def staging(self) -> int:
        return super().staging + sum(vector.nbytes for tile in self._sets for vector in tile)

    @property
    def _where(self) -> str:
        stale = f"; it replaces {self.file.replaced} of a run that was killed" * (self.file.replaced > 0)
        return f", in {self.file.path} of {self.file.nbytes:,} bytes{stale}"

    def _allocate(self) -> dict[str, Tensor]:
        return {}

    def held(self) -> dict[str, int]:
        return dict.fromkeys(self.kinds, self.size * self.dtype.itemsize)

    def opened(self) -> dict[str, Tensor]:
        """The vectors, mapped: pages come into memory as they are touched, and the system may drop them again."""
        return dict(zip(self.kinds, self.file.mapped(self.dtype).chunk(len(self.kinds)), strict=True))

    def _places(self, tile: Segment) -> list[int]:
        """Where in the file each kind has the tile."""
        first = tile.local.start - self.local.start
        return [(kind * self.size + first) * self.dtype.itemsize for kind in range(len(self.kinds))]

    def _tiles(self) -> Iterator[list[Tensor]]:
        def read(number: int) -> list[Tensor]:
            tile = self.tiles[number]
            views = [vector[: length(tile.local)] for vector in self._sets[number % 2]]
            for view, place in zip(views, self._places(tile), strict=True):
                self.file.read(view, place)
            return views

        def turn(number: int, views: list[Tensor]) -> list[Tensor]:
            """Write a tile back, and read into its place the one after the next."""
            for view, place in zip(views, self._places(self.tiles[number]), strict=True):
                self.file.write(view, place)
            return read(number + 2) if number + 2 < len(self.tiles) else []

        with ThreadPoolExecutor(1) as thread:
            coming = deque(thread.submit(read, number) for number in range(min(2, len(self.tiles))))
            for number in range(len(self.tiles)):
                views = coming.popleft().result()
                yield views
                coming.append(thread.submit(turn, number, views))
            for last in coming:
                last.result()

    def reload_main(self) -> None:
        for tile in self.tiles:
            main = self._sets[0][0][: length(tile.local)]
            main.copy_(self.buffer.params[tile.range])
            self.file.write(main, self._places(tile)[0])
