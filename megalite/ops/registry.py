"""Which code computes an op: its definition in pure torch, or a kernel that was built for the device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from megalite.ops import build

_NAMESPACE = torch.library.Library("megalite", "DEF")


class Op:
    """An operation that libraries may implement: `torch.ops.megalite.NAME`.

    `reference` is what it computes, in pure torch: the definition, and what runs where there is nothing else.
    """

    def __init__(self, schema: str, reference: Callable[..., Any]) -> None:
        self.name, self.reference = schema.partition("(")[0], reference
        _NAMESPACE.define(schema)
        _NAMESPACE.impl(self.name, reference, "CompositeExplicitAutograd")

    @property
    def native(self) -> Callable[..., Any]:
        """The op by way of torch's dispatcher, which finds the kernel for a device."""
        return getattr(torch.ops.megalite, self.name).default

    def has_kernel(self, key: str) -> bool:
        """Whether a library that is loaded computes it on `CPU` or `CUDA`."""
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"megalite::{self.name}", key)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What came of loading the kernels for a kind of device."""

    path: Path | None
    """The library, if one is loaded."""
    why: str
    """Why it is this one, or none."""


@cache
def load(kind: str) -> Loaded:
    """Load the library for `cpu` or `cuda` that was built, once."""
    if kind == "cuda" and not torch.version.cuda:
        return Loaded(path=None, why="this torch is built without CUDA")
    if kind == "cpu" and build.LEVEL == "avx2" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return Loaded(path=None, why="this processor has no AVX2")
    for path in build.libraries(kind):
        try:
            torch.ops.load_library(path)
        except OSError as error:
            return Loaded(path=None, why=f"{path.name} does not load: {error}")
        return Loaded(path=path, why=path.name)
    option = " --cuda" if kind == "cuda" else ""
    return Loaded(path=None, why=f"not built: python -m megalite.ops.build{option}")


class Kernels:
    """What computes each op in one run: by subscript, a function of the op's arguments."""

    def __init__(self, wish: str, device_type: str, ops: Sequence[Op]) -> None:
        """`wish`: auto, reference, or require, which raises ValueError where a kernel is missing."""
        self._chosen = {op.name: op.reference for op in ops}
        if wish == "reference":
            self.described = "pure torch, as asked"
            return
        loaded = load(device_type)
        native = [op for op in ops if loaded.path and op.has_kernel(device_type.upper())]
        if wish == "require" and len(native) < len(ops):
            missing = sorted({op.name for op in ops} - {op.name for op in native})
            raise ValueError(f"--kernels require: there is no kernel on {device_type} for {', '.join(missing)} "
                             f"({loaded.why}). Use --kernels auto.")  # fmt: skip
        self._chosen |= {op.name: op.native for op in native}
        names = sorted(op.name for op in native if not op.name.endswith("_backward"))
        self.described = f"{', '.join(names)} ({loaded.why})" if names else f"pure torch ({loaded.why})"

    def __getitem__(self, op: Op) -> Callable[..., Any]:
        return self._chosen[op.name]
