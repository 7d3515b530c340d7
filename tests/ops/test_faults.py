"""Mistakes planted in the CUDA sources, each of which the contract suite must notice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.ops.backends import emulated_with
from tests.ops.contracts import CONTRACTS, F32
from tests.ops.test_contract import mistakes

SYNC = "__syncthreads();"
FAULTS = {
    "rms_norm": {
        "scratch is read before all have written it": ("norm.cu", f"= value[i];\n  {SYNC}", "= value[i];"),
        "half of a warp is left out": ("norm.cu", "kWarp ? width : kWarp) / 2", "kWarp ? width : kWarp) / 4"),
        "one column too many": ("norm.cu", "return at(pack) < count;", "return at(pack) <= count;"),
    },
    "cross_entropy": {
        "the largest is not shared": ("cross_entropy.cu", "row_max(most, int(blockDim.x), scratch);", ""),
        "a sum is not rescaled": ("cross_entropy.cu", "    sum *= exp(high - most);\n", ""),
        "the column behind the part is taken": ("cross_entropy.cu", "column < cols ? widen", "column <= cols ? widen"),
    },
    "cross_entropy_backward": {
        "padding has a gradient": ("cross_entropy.cu", "c + k < cols ? share * scale : A(0)", "share * scale"),
        "a store behind the row": ("cross_entropy.cu", "pack.store(x + c);", "pack.store(x + c + N);"),
        "the target of another rank": (
            "cross_entropy.cu",
            "column = target[row] - first;\n  T* x",
            "column = target[row];\n  T* x",
        ),
    },
    "glu": {
        "a thread behind the last": ("glu.cu", "if (at >= count) return;\n  const", "const"),
        "the gate of the row before": ("glu.cu", "from = x + (at + at / each * each) * N", "from = x + at * N"),
    },
    "glu_backward": {
        "dup in the place of the next": (
            "glu.cu",
            "ups.store(dx + place + each * N)",
            "ups.store(dx + place + each * N + N)",
        ),
    },
    "rms_norm_backward": {
        "sums of the rows are read before all are written": ("norm.cu", f"dbias[i][k];\n    {SYNC}", "dbias[i][k];"),
        "a store behind the row": (
            "norm.cu",
            "dx.store(a.dx + row * a.cols + columns.at(i))",
            "dx.store(a.dx + row * a.cols + columns.at(i) + N)",
        ),
        "rows of the last block that are not there": ("norm.cu", "row < a.rows ? a.cols : 0;\n    A", "a.cols;\n    A"),
        "the parts are summed before all are written": ("norm.cu", f"= sum;\n  {SYNC}", "= sum;"),
    },
}


def planted() -> Iterator[ParameterSet]:
    """The first of each kernel by default."""
    for contract, faults in FAULTS.items():
        for place, fault in enumerate(faults):
            yield pytest.param(contract, fault, marks=pytest.mark.soak if place else [])


@pytest.mark.parametrize(("name", "fault"), list(planted()))
def test_a_planted_fault_is_noticed(name: str, fault: str, tmp_path: Path) -> None:
    source, text, instead = FAULTS[name][fault]
    broken = emulated_with((text, instead), source, tmp_path)
    contract = next(contract for contract in CONTRACTS if contract.name == name)
    asked = (case for case in contract.cases if case.dtype == case.weight_dtype == F32)
    assert any(mistakes(contract, case, broken) for case in asked)
