"""What an optimizer keeps of the parameters that a rank owns: main params and states, and where the update runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from megalite.arith.buckets import ALIGNED, length, rounded_up
from megalite.data_parallel.buffer import GradBuffer
from megalite.data_parallel.layout import Segment
from megalite.gradient import main_dtype
from megalite.shard import Shard, boxes_of_range

Update = Callable[[Segment, Tensor, Tensor, list[Tensor]], None]
"""Updates in place a segment's main params by its main grads; the states come last."""


class Resident:
    """Main params and states on the device, as vectors of what `segments` name, and the update there.

    Main params are the params themselves where these are fp32 or wider, and an fp32 copy where they are narrower.
    """

    memory = "device"

    def __init__(self, buffer: GradBuffer, segments: Sequence[Segment], names: Sequence[str]) -> None:
        self.buffer, self.segments, self.names = buffer, segments, names
        self.local = slice(segments[0].local.start, segments[-1].local.stop) if segments else slice(0, 0)
        """Its place in a vector of all that is owned."""
        self.size = length(self.local)
        self.dtype = main_dtype(buffer.params.dtype)
        self.vectors = self._allocate()

    @property
    def is_narrow(self) -> bool:
        """Whether main params are more exact than the params."""
        return self.buffer.params.dtype != self.dtype

    @property
    def note(self) -> str:
        """A line for the log, where something is to be said."""
        return ""

    def _allocate(self) -> dict[str, Tensor]:
        kept = ("main", *self.names) if self.is_narrow else self.names
        return {name: self.buffer.params.new_zeros(self.size, dtype=self.dtype) for name in kept}

    def opened(self) -> dict[str, Tensor]:
        """The vectors by name."""
        return self.vectors

    def held(self) -> dict[str, int]:
        """Bytes of the main params that are a copy, and of each state."""
        return {name: vector.nbytes for name, vector in self.vectors.items()}

    def at(self, vector: Tensor, local: slice) -> Tensor:
        """The part of one of the vectors that has this place in what is owned."""
        return vector[local.start - self.local.start : local.stop - self.local.start]

    def mains(self) -> Iterator[tuple[Segment, Tensor]]:
        """The main params, segment by segment."""
        copy = self.opened()["main"] if self.is_narrow else None
        for segment in self.segments:
            yield segment, self.buffer.params[segment.range] if copy is None else self.at(copy, segment.local)

    def update(self, apply: Update) -> None:
        """Bring main params, states and params up to date."""
        for segment, main in self.mains():
            states = [self.at(self.vectors[name], segment.local) for name in self.names]
            apply(segment, main, self.buffer.grads.of(segment), states)
            if self.is_narrow:
                self.buffer.params[segment.range].copy_(main)

    def reload_main(self) -> None:
        """Take the main params from the params."""
        if self.is_narrow:
            for segment, main in self.mains():
                main.copy_(self.buffer.params[segment.range])

    def shards(self) -> Iterator[Shard]:
        """What a checkpoint holds: each state, and the main params where they are more exact than the params."""
        vectors = self.opened()
        for name in ("main", *self.names) if self.is_narrow else self.names:
            for piece in self.buffer.pieces:
                begin = piece.local.start
                start, stop = max(begin, self.local.start), min(piece.local.stop, self.local.stop)
                for box, part in boxes_of_range(piece.box, start - begin, stop - begin):
                    yield Shard(
                        name=f"optimizer.{name}.{piece.slot.name}",
                        global_shape=piece.slot.spec.global_shape,
                        box=box,
                        tensor=self.at(vectors[name], slice(begin + part.start, begin + part.stop)).view(
                            [last - first for first, last in box]
                        ),
                    )


def cut(segments: Sequence[Segment], size: int) -> tuple[list[Segment], list[Segment]]:
    """The first `size` elements of what is owned, and the rest; within a segment to the next multiple of ALIGNED."""
    first: list[Segment] = []
    rest: list[Segment] = []
    for segment in segments:
        wanted = rounded_up(size - segment.local.start, ALIGNED)
        kept = min(max(wanted, 0), length(segment.local))
        if kept:
            first.append(part(segment, 0, kept))
        if kept < length(segment.local):
            rest.append(part(segment, kept, length(segment.local)))
    return first, rest


def part(segment: Segment, start: int, stop: int) -> Segment:
    """Some elements of a segment, counted from its first."""
    where, local = segment.range.start, segment.local.start
    return replace(segment, range=slice(where + start, where + stop), local=slice(local + start, local + stop))
