"""The one place that knows which kind of device this process computes on."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from megalite.environment import allocator_is_tuned, set_default

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Parameters of mallopt(3)."""


def pick(name: str, local_rank: int) -> torch.device:
    """The device of this process for `auto`, `cpu` or `cuda`; becomes the current one.

    Raises ValueError where a GPU is asked for and none is to be had.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            "--device cuda: torch sees no GPU on this machine. Use --device cpu, or a CUDA build of torch."
        )
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ValueError(f"--device {name}: local rank {local_rank} has no GPU of its own ({count} visible). "
                         f"Start torchrun with --nproc-per-node {count} or less.")  # fmt: skip
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def is_ampere_or_newer(device: torch.device) -> bool:
    """Whether the device is a GPU for which torch's flash attention is written."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def set_up_cpu(threads: int) -> str:
    """Make a program that trains on the CPU compute with this many threads; a few words about it."""
    _keep_freed_memory()
    torch.set_num_threads(threads)
    return f"{threads} thread{'s' * (threads > 1)} each"


def _keep_freed_memory() -> None:
    """Let glibc keep what is freed: large tensors would go back, and cost a fault for each page when they return.

    Left alone where the user tunes the allocator, by any MALLOC_... variable. Elsewhere than on glibc it does nothing.
    """
    if allocator_is_tuned():
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20)):
            mallopt(parameter, value)


def backend_for(device: torch.device, asked: str) -> str:
    """The torch.distributed backend that is asked for; of `auto`, the one that moves this device's tensors best.

    Raises ValueError where it cannot move them.
    """
    if asked == "nccl" and device.type != "cuda":
        raise ValueError("--distributed-backend nccl needs a GPU, and there is none. Use --distributed-backend gloo.")
    return ("nccl" if device.type == "cuda" else "gloo") if asked == "auto" else asked


def synchronize(device: torch.device) -> None:
    """Wait for the work queued on the device, so that a clock read next is honest."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int | None:
    """Bytes this process held at most on the device since it started; None where the host's memory is the device's."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


class HostLink:
    """Copies between a device's memory and the host's, and counts the bytes that go each way.

    On a GPU with `overlap` they run beside the computation. On a CPU both ends are the same kind of memory, and a copy
    is a copy.
    """

    def __init__(self, device: torch.device, *, overlap: bool) -> None:
        self.device = device
        self.to_host_bytes = self.to_device_bytes = 0
        self._stream = torch.cuda.Stream(device) if overlap and device.type == "cuda" else None

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """Memory of the host that the device can reach by itself: [size]."""
        return torch.empty(size, dtype=dtype, pin_memory=self.device.type == "cuda")

    def to_host(self, source: Tensor, target: Tensor) -> None:
        """Begin to copy a tensor of the device, once it is computed there."""
        self.to_host_bytes += source.nbytes
        if self._stream is None:
            target.copy_(source)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def to_device(self, source: Tensor, target: Tensor) -> None:
        """Begin to copy a tensor of the host, cast to the target's dtype first; it may be overwritten at once."""
        self.to_device_bytes += target.nbytes
        if self._stream is None:
            target.copy_(source.to(target.dtype))
            return
        with torch.cuda.stream(self._stream):
            target.copy_(source.to(target.dtype, copy=True).pin_memory(), non_blocking=True)

    def wait_on_host(self) -> None:
        """Wait until all copies are made."""
        if self._stream is not None:
            self._stream.synchronize()

    def wait_on_device(self) -> None:
        """Let what the device computes from here on see all copies."""
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)


@contextmanager
def deterministic() -> Iterator[None]:
    """Let torch choose deterministic algorithms only, while the context lasts; it raises where it has none."""
    set_default("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when the first product asks for a workspace.
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
