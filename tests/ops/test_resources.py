"""What nvcc makes of the kernels: registers for every thread that a launch may have, and nothing spilled to memory."""

import re

import pytest

from megalite.ops import build
from tests.ops.backends import nvcc_or_skip

SOURCES = sorted(path.name for path in (build.CSRC / "cuda").glob("*.cu"))
FUNCTION = r"Function properties for (\S+)\s+(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers"
QUICK = "norm.cu"
"""Of one dtype and for one GPU by default."""


def spilled(said: str) -> list[str]:
    """Kernels that keep something of a thread in memory, or have registers for fewer threads than are launched."""
    found = re.findall(FUNCTION, said, re.DOTALL)
    assert found
    return [name for name, *numbers in found if int(numbers[0]) or int(numbers[1]) or int(numbers[2]) > 128]


def test_no_kernel_of_a_dtype_spills() -> None:
    nvcc_or_skip()
    made = build.cuda_object(build.CSRC / "cuda" / QUICK, ["90"], defines=["ML_ONLY_F32"])
    assert spilled(made.with_suffix(".log").read_text()) == []


@pytest.mark.soak
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("architecture", build.ARCHITECTURES)
def test_no_kernel_spills(source: str, architecture: str) -> None:
    nvcc_or_skip()
    made = build.cuda_object(build.CSRC / "cuda" / source, [architecture])
    assert spilled(made.with_suffix(".log").read_text()) == []


def test_a_spill_is_noticed() -> None:
    said = "Function properties for f\n    8 bytes stack frame, 4 bytes spill stores, 4 spill loads\nUsed 48 registers"
    assert spilled(said) == ["f"]
