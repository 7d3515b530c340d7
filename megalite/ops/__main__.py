"""What computes each op here: python -m megalite.ops"""

from megalite.ops.registry import load
from megalite.ops.table import OPS


def table() -> str:
    """A row for each op: whether a kernel for the CPU and one for GPUs is loaded; below, which and why."""
    loaded = {kind: load(kind) for kind in ("cpu", "cuda")}
    rows: list[tuple[str, ...]] = [("op", "CPU", "CUDA", "reference")]
    for op in OPS:
        rows.append((op.name, *("kernel" if op.has_kernel(kind.upper()) else "-" for kind in loaded), "pure torch"))
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, (28, 6, 6, 10), strict=True)) for row in rows]
    return "\n".join([*lines, *(f"{kind.upper()}: {found.why}" for kind, found in loaded.items())])


if __name__ == "__main__":
    print(table())
