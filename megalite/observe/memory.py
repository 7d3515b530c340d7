"""What a process holds of the machine's memory, and what autograd keeps of it. A GPU's allocator keeps its own account
(device.py)."""

import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor


def peak_resident_bytes() -> int:
    """The most memory this process has held resident so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss here: Linux lets that start at the size of the process that launched this one.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _Kept:
    """A tensor for as long as autograd keeps it."""

    def __init__(self, tensor: Tensor, release: Callable[[int], None]) -> None:
        self.tensor, self._release = tensor, release

    def __del__(self) -> None:
        self._release(_address(self.tensor))


class SavedTensors:
    """Bytes of what autograd keeps from forward to backward, by kind: now, and at most so far of each.

    Memory counts once, however many tensors are parts of it; that of `others`, which lives on anyway, does not count.
    """

    def __init__(self, others: Iterable[Tensor], kind: Callable[[Tensor], str]) -> None:
        self.now: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self._others = {_address(tensor) for tensor in others}
        self._kind = kind
        self._users: Counter[int] = Counter()
        self._entries: dict[int, tuple[str, int]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is saved while the context lasts, until it is released, whenever that is."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _tensor):
            yield

    def _pack(self, tensor: Tensor) -> Tensor | _Kept:
        address = _address(tensor)
        if address in self._others:
            return tensor
        self._users[address] += 1
        if self._users[address] == 1:
            kind, nbytes = self._entries[address] = (self._kind(tensor), tensor.untyped_storage().nbytes())
            self.now[kind] += nbytes
            self.peak[kind] = max(self.peak[kind], self.now[kind])
        return _Kept(tensor.detach(), self._release)

    def _release(self, address: int) -> None:
        self._users[address] -= 1
        if self._users[address] == 0:
            kind, nbytes = self._entries.pop(address)
            self.now[kind] -= nbytes


def _tensor(saved: Tensor | _Kept) -> Tensor:
    return saved.tensor if isinstance(saved, _Kept) else saved


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def memory_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory that tensors share, each counted once."""
    return sum({_address(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
