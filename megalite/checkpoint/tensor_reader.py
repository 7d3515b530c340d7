"""Reading boxes of the tensors in a safetensors file straight into the memory that wants them."""

import json
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from megalite.checkpoint.tensor_file import DTYPES_BY_CODE, Entry

_LONGEST_HEADER = 100_000_000  # bytes, as the format allows
_WINDOW = 1 << 24  # bytes of a file that are mapped at once
_RUN = 1 << 16  # bytes that are worth a call of the system
_POPULATE_READ = 22  # an option of madvise(2) since Linux 5.14: map all pages at once, to be read


class TensorReader:
    """An open file, of which nothing but its header is in memory. ValueError where the header is not of such a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDONLY)
        try:
            self._entries = self._read_header()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.close()
            raise ValueError(f"its header does not describe it ({error})") from error

    def __enter__(self) -> "TensorReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._handle)

    def _read_header(self) -> dict[str, Entry]:
        size = os.fstat(self._handle).st_size
        length = int.from_bytes(os.pread(self._handle, 8, 0), "little")
        if length > min(_LONGEST_HEADER, size - 8):
            raise ValueError(f"it claims {length} bytes of the {size} of the file")
        header = json.loads(os.pread(self._handle, length, 8))
        header.pop("__metadata__", None)
        self.starts: dict[str, int] = {}
        entries, data = {}, 8 + length
        for key, facts in header.items():
            entry = Entry(key=key, dtype=DTYPES_BY_CODE[facts["dtype"]], shape=tuple(facts["shape"]))
            start, stop = facts["data_offsets"]
            if min(entry.shape, default=0) < 0 or not 0 <= start <= stop <= size - data:
                raise ValueError(f"{key} lies outside the file")
            if stop - start != entry.nbytes:
                raise ValueError(f"{key} has {stop - start} bytes instead of {entry.nbytes}")
            entries[key], self.starts[key] = entry, data + start
        return entries

    def entry(self, key: str) -> Entry:
        """Dtype and shape of a tensor. ValueError where the file has none of this key."""
        if key not in self._entries:
            raise ValueError(f"it holds no {key}")
        return self._entries[key]

    @torch.no_grad()
    def read(self, key: str, box: Sequence[slice], target: Tensor) -> None:
        """Copy a box of a tensor into a target of the box's shape, of any dtype, device and memory order."""
        entry, cuts, target = self.entry(key), list(box), target.detach()
        shape = list(entry.shape)
        if not shape:
            shape, cuts, target = [1], [slice(0, 1)], target.view(1)
        if target.is_contiguous():  # what is taken whole of a dimension is one with the dimension before it
            while len(shape) > 1 and cuts[-1] == slice(0, shape[-1]):
                width = shape.pop()
                cuts.pop()
                shape[-1] *= width
                cuts[-1] = slice(cuts[-1].start * width, cuts[-1].stop * width)
            target = target.view([cut.stop - cut.start for cut in cuts])
        self._copy(self.starts[key], entry.dtype, shape, cuts, target)

    def _copy(self, start: int, dtype: torch.dtype, shape: list[int], cuts: list[slice], target: Tensor) -> None:
        """`read` of what starts at a byte of the file: at once, row by row, or through a window."""
        (rows, *inner), size = cuts, dtype.itemsize
        if not inner and target.is_contiguous() and target.dtype == dtype and target.device.type == "cpu":
            row = target.as_strided((len(target),), (1,))  # the stride of a single element may be anything
            self._fill(row.view(torch.uint8).numpy().data, start + rows.start * size)
            return
        width = math.prod(shape[1:]) * size
        taken = math.prod(cut.stop - cut.start for cut in inner) * size
        if inner and (width > _WINDOW or _RUN <= taken <= width // 2):
            for number, row in zip(range(rows.start, rows.stop), target, strict=True):
                self._copy(start + number * width, dtype, shape[1:], inner, row)
            return
        many = max(1, _WINDOW // width)
        for first in range(rows.start, rows.stop, many):
            last = min(rows.stop, first + many)
            part = target[first - rows.start : last - rows.start]
            with self._window(start + first * width, start + last * width) as window:
                stored = torch.frombuffer(window, dtype=torch.uint8)
                aligned = stored if stored.data_ptr() % size == 0 else stored.clone()
                part.copy_(aligned.view(dtype).view(last - first, *shape[1:])[(slice(None), *inner)])
                del stored, aligned  # else the window could not be closed

    def _fill(self, view: memoryview, place: int) -> None:
        """Read so many bytes from a byte of the file on."""
        while view:
            count = os.preadv(self._handle, [view], place)
            if count == 0:
                raise ValueError("it ends within a tensor")
            view, place = view[count:], place + count

    @contextmanager
    def _window(self, start: int, stop: int) -> Iterator[memoryview]:
        """These bytes of the file, mapped while the context lasts. Nobody writes to them, which would not reach the
        file."""
        base = start - start % mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(self._handle, stop - base, mmap.MAP_PRIVATE, offset=base) as mapped:
            with suppress(OSError):  # it only saves faults; older systems do not know it
                mapped.madvise(_POPULATE_READ)
            with memoryview(mapped) as whole, whole[start - base :] as window:
                yield window
