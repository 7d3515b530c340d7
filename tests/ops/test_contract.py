"""One suite for every kernel on every backend: the definition, the CPU library, the CUDA sources on the host, a GPU."""

import pytest
import torch
from torch import Tensor

from tests.ops.backends import Backend, Guarded, cpu, emulated, gpu
from tests.ops.contracts import CONTRACTS, F64, ROUNDING, Case, Contract


def expected(contract: Contract, case: Case) -> list[Tensor]:
    """The definition in fp64, of the inputs as they are."""
    wide = {name: x.to(F64) if x.is_floating_point() else x for name, x in contract.inputs(case).items()}
    return list(contract.definition(case, wide))


def mistake(found: Tensor, right: Tensor, *, roundings: int = 1) -> str:
    """What is wrong with a result, or nothing."""
    allowed, found = ROUNDING[found.dtype] * roundings, found.cpu().to(F64)
    if found.shape != right.shape:
        return f"is {tuple(found.shape)}, not {tuple(right.shape)}"
    if not torch.equal(found.isnan(), right.isnan()):
        return "is NaN where it should not be, or the other way round"
    if not right.numel():
        return ""
    right = right.nan_to_num()
    # Numbers near 1 may have cancelled: what is left has their rounding.
    off, size = (found.nan_to_num() - right).abs().max(), right.abs().max().clamp(min=0.05)
    return "" if off <= allowed * size else f"is off by {off:.2e}, where the largest is {size:.2e}"


def results(contract: Contract, case: Case, backend: Backend) -> dict[str, Tensor]:
    """What the kernel computes into poisoned memory; that it keeps to its outputs is asserted."""
    given = {
        name: Guarded(x.shape, x.dtype, backend.device, offset=case.offset) for name, x in contract.inputs(case).items()
    }
    tensors = {name: given[name].fill(x) for name, x in contract.inputs(case).items()}
    made = {
        name: Guarded(shape, dtype, backend.device, offset=case.offset)
        for name, (shape, dtype) in contract.outputs(case, backend).items()
    }
    answer = contract.call(case, backend, tensors | {name: memory.tensor for name, memory in made.items()})
    assert answer == 0, backend.said() or f"answered {answer}"
    made = {name: given.pop(name) for name in contract.written} | made
    assert [name for name, memory in given.items() if not memory.is_unchanged] == []
    assert [name for name, memory in made.items() if not memory.is_guarded] == []
    return {name: memory.tensor for name, memory in made.items() if not name.startswith("_")}


def mistakes(contract: Contract, case: Case, backend: Backend) -> list[str]:
    """How the kernel breaks its contract in a case, in any order of threads."""
    runs = []
    for set_up in backend.orders():
        set_up()
        try:
            runs.append(results(contract, case, backend))
        except AssertionError as error:
            return [str(error)]
    right = dict(zip(runs[-1], expected(contract, case), strict=True))
    found = [f"{name} {said}" for name, x in runs[-1].items() if (said := mistake(x, right[name]))]
    for run in runs[:-1]:
        bits = [
            name for name, x in run.items() if not torch.equal(x.view(torch.uint8), runs[-1][name].view(torch.uint8))
        ]
        found += [f"{name} depends on the order of threads" for name in bits]
    return found


def breaches(contract: Contract, backend: Backend) -> list[str]:
    return [f"{case}: {said}" for case in contract.cases for said in mistakes(contract, case, backend)]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_cpu(contract: Contract) -> None:
    assert breaches(contract, cpu()) == []


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_cuda_on_the_host(contract: Contract) -> None:
    assert breaches(contract, emulated(contract.source)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_gpu(contract: Contract) -> None:
    assert breaches(contract, gpu()) == []


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_definition_in_each_dtype(contract: Contract) -> None:
    for case in contract.cases:
        right = expected(contract, case)
        found = contract.definition(case, contract.inputs(case))
        assert [
            said for x, y in zip(found, right, strict=True) if (said := mistake(x, y, roundings=contract.roundings))
        ] == [], str(case)
