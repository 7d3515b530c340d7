"""The ops as the model calls them: their gradients, their way through torch, and what chooses their code."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from megalite.ops.activation import quick_geglu, swiglu
from megalite.ops.norm import RMS_NORM, rms_norm
from megalite.ops.registry import Kernels, Loaded
from megalite.ops.table import OPS
from tests.house.rules import ROOT
from tests.ops.backends import cpu

F64 = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.fixture(params=["reference", "require"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "require":
        cpu()
    return Kernels(request.param, "cpu", OPS)


CALLS = {
    "rms_norm": (lambda k, x, weight: rms_norm(x, weight, eps=1e-5, origin=1.0, kernels=k), [(2, 3, 5), (5,)]),
    "swiglu": (lambda k, x: swiglu(x, kernels=k), [(2, 3, 8)]),
    "quick_geglu": (lambda k, x: quick_geglu(x, kernels=k), [(5, 6)]),
}
"""Each op of the model as a function of tensors, and their shapes."""


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name: str, kernels: Kernels) -> None:
    call, shapes = CALLS[name]
    given = [random(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(lambda *tensors: call(kernels, *tensors), given)


@pytest.mark.parametrize("name", CALLS)
def test_strides_do_not_matter(name: str, kernels: Kernels) -> None:
    call, ((*outer, width), *others) = CALLS[name][0], CALLS[name][1]
    spread = random(*outer, 2 * width)[..., ::2]
    rest = [random(*shape, seed=1) for shape in others]
    found, right = call(kernels, spread, *rest), call(kernels, spread.contiguous(), *rest)
    assert torch.equal(found, right)
    assert torch.equal(*(torch.autograd.grad(y.sum(), rest or spread)[0] for y in (found, right)))


def test_torch_finds_the_op_sound() -> None:
    cpu()
    x, weight = random(3, 8).detach(), random(8).detach()
    torch.library.opcheck(RMS_NORM.native, (x, weight, 1e-5, 0.0))


def test_what_is_missing_is_pure_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megalite.ops.registry.load", lambda kind: Loaded(path=None, why="no compiler"))
    kernels = Kernels("auto", "cpu", OPS)
    assert kernels[RMS_NORM] is RMS_NORM.reference and kernels.described == "pure torch (no compiler)"
    with pytest.raises(ValueError, match=r"--kernels require: there is no kernel on cpu for .*rms_norm.*no compiler"):
        Kernels("require", "cpu", OPS)


def test_the_table_names_every_op() -> None:
    shown = subprocess.run([sys.executable, "-m", "megalite.ops"], cwd=ROOT, capture_output=True, text=True).stdout
    assert [op.name for op in OPS if op.name not in shown] == []
