"""Update rules beside a formula."""

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from megalite.optimizer import rules
from megalite.optimizer.rules import Rule, StepSize


def told_adam(chunk: int, overflow: Tensor, tensors: list[list[Tensor]], *sizes: Any) -> None:
    """What apex's kernel does with its arguments, in their order."""
    lr, beta1, beta2, eps, number, decoupled, correct_bias, weight_decay = sizes
    assert (chunk, overflow.tolist(), decoupled, correct_bias) == (65536, [0], 1, 1)
    for grad, param, mean, square in zip(*tensors, strict=True):
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        root = (square / (1 - beta2**number)).sqrt() + eps
        param.add_(-lr * (mean / (1 - beta1**number) / root + weight_decay * param))


def three_steps(rule: Rule) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    param, *grads = (torch.randn(37, generator=random, dtype=torch.float64) for _ in range(4))
    states = [torch.zeros_like(param) for _ in rule.states]
    for number, grad in enumerate(grads, 1):
        rule.update(param, grad, states, StepSize(lr=0.1 / math.sqrt(number), weight_decay=0.1, number=number))
    return [param, *states]


def test_adam_by_torch_and_by_apex_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    applier = SimpleNamespace(multi_tensor_applier=lambda kernel, *arguments: kernel(65536, *arguments))
    monkeypatch.setitem(sys.modules, "amp_C", SimpleNamespace(multi_tensor_adam=told_adam))
    monkeypatch.setitem(sys.modules, "apex", SimpleNamespace(multi_tensor_apply=applier))
    monkeypatch.setitem(sys.modules, "apex.multi_tensor_apply", applier)
    ours, theirs = (three_steps(make(0.9, 0.95, 1e-8)) for make in (rules.adam, rules.apex_adam))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_without_apex_the_other_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amp_C", None)
    with pytest.raises(ValueError, match="Use --adam-kernel torch"):
        rules.apex_adam(0.9, 0.95, 1e-8)
