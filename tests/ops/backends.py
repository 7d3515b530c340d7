"""What runs a kernel of csrc's C interface: the CPU library, the CUDA sources on the host, or a GPU."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from megalite.ops import build
from megalite.ops.registry import load

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
"""What api.h calls the dtypes."""
GUARD = 64 << 10
"""Bytes before and behind each tensor that no kernel may touch: more than a whole block's rows that are not there."""
MARK = 0xA5
HOST = [
    "-std=c++17",
    "-O1",
    "-g0",
    "-fPIC",
    "-x",
    "c++",
    f"-I{build.CSRC / 'include'}",
    f"-I{build.CSRC / 'emu'}",
    "-w",
]

Argument = Tensor | int | float | torch.dtype | None


@dataclass(frozen=True)
class Backend:
    """A library of kernels, and the device of the tensors it takes."""

    name: str
    library: ctypes.CDLL
    device: str = "cpu"

    def call(self, name: str, *arguments: Argument) -> int:
        """Call a kernel with what api.h asks for in its order, the stream left out; what it answered."""
        answer = getattr(self.library, name)(*map(_passed, arguments), ctypes.c_void_p())
        if self.device == "cuda":
            torch.cuda.synchronize()
        return answer

    def count(self, name: str, *sizes: int) -> int:
        """Call a function of sizes that returns one."""
        function = getattr(self.library, name)
        function.restype = ctypes.c_int64
        return function(*map(ctypes.c_int64, sizes))

    def orders(self) -> Sequence[Callable[[], None]]:
        """What sets up runs whose results must be the same bits."""
        if self.name == "cpu":
            return [lambda: torch.set_num_threads(3), lambda: torch.set_num_threads(1)]
        if self.name == "emulated":
            return [lambda order=order: self.library.ml_emu_order(order) for order in (1, 7, 0)]
        return [lambda: None]

    def said(self) -> str:
        """What the emulator found wrong with the last launch."""
        if self.name != "emulated":
            return ""
        self.library.ml_emu_error.restype = ctypes.c_char_p
        return self.library.ml_emu_error().decode()


def _passed(argument: Argument) -> ctypes._SimpleCData:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, torch.dtype):
        return ctypes.c_int(CODES[argument])
    kinds = {type(None): ctypes.c_void_p, int: ctypes.c_int64, float: ctypes.c_double}
    return kinds[type(argument)](argument)


class Guarded:
    """Memory for a tensor between guards, poisoned: bytes of which every float is NaN.

    `offset` moves its start by so many elements from where all accesses are aligned.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: str, *, offset: int = 0) -> None:
        count = torch.Size(shape).numel()
        start, size = GUARD + offset * dtype.itemsize, count * dtype.itemsize
        self.bytes = torch.full((start + size + GUARD,), MARK, dtype=torch.uint8, device=device)
        self.inside = slice(start, start + size)
        self.bytes[self.inside] = 0xFF
        self.tensor = self.bytes[self.inside].view(dtype).view(shape)

    def fill(self, values: Tensor) -> Tensor:
        self.tensor.copy_(values)
        self.filled = self.bytes[self.inside].clone()
        return self.tensor

    @property
    def is_guarded(self) -> bool:
        """Whether nothing around it was written."""
        return all((part == MARK).all() for part in (self.bytes[: self.inside.start], self.bytes[self.inside.stop :]))

    @property
    def is_unchanged(self) -> bool:
        return self.is_guarded and torch.equal(self.bytes[self.inside], self.filled)


def emulated(source: str, *, defines: Sequence[str] = ()) -> Backend:
    """A CUDA source on the host."""
    return Backend("emulated", _emulated(build.CSRC / "cuda" / source, tuple(defines)))


def emulated_with(edit: tuple[str, str], source: str, folder: Path) -> Backend:
    """The same of one dtype, with a text of the source or of reduce.h replaced by another in a copy in `folder`."""
    header = (build.CSRC / "include/megalite/reduce.h").read_text()
    text = (build.CSRC / "cuda" / source).read_text().replace('#include "megalite/reduce.h"', header)
    assert edit[0] in text, f"{source} no longer says {edit[0]}"
    (folder / source).write_text(text.replace(*edit))
    return Backend("emulated", _emulated(folder / source, ("ML_ONLY_F32",)))


@cache
def _emulated(path: Path, defines: tuple[str, ...]) -> ctypes.CDLL:
    compiler = compiler_or_skip()
    flags = [*HOST, *(f"-D{name}" for name in defines)]
    objects = [build.compiled(source, compiler, flags) for source in (path, build.CSRC / "emu/emu.cpp")]
    made = objects[0].with_suffix(".so")
    if not made.exists():
        build.link(made, objects, compiler, [])
    return ctypes.CDLL(str(made))


def compiler_or_skip() -> str:
    try:
        return build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))


@cache
def cpu() -> Backend:
    """The CPU kernels, built now if they are not: tests never run those of other sources."""
    compiler_or_skip()
    if load("cpu").path is None:
        build.build_cpu()
        load.cache_clear()
    return Backend("cpu", ctypes.CDLL(str(load("cpu").path)))


def gpu() -> Backend:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    if load("cuda").path is None:
        build.build_cuda(architectures=["90"])
        load.cache_clear()
    return Backend("gpu", ctypes.CDLL(str(load("cuda").path)), "cuda")


def nvcc_or_skip() -> str:
    try:
        return build.find_nvcc()
    except build.BuildError as error:
        pytest.skip(str(error))
