"""Update rules: how one step changes a vector of main params. One function each, chosen from the table by name."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """What an update needs besides the tensors: the learning rate, the weight decay, and the number of this update."""

    lr: float
    weight_decay: float
    number: int


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`update(param, grad, states, step)` works in place; `states` are vectors like the param, zero at first."""

    states: tuple[str, ...]
    update: Callable[[Tensor, Tensor, list[Tensor], StepSize], None]


def adam(beta1: float, beta2: float, eps: float) -> Rule:
    """AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019), by torch's fused kernel."""

    def update(param: Tensor, grad: Tensor, states: list[Tensor], step: StepSize) -> None:
        torch._fused_adamw_(
            [param],
            [grad],
            [states[0]],
            [states[1]],
            [],
            [torch.tensor(float(step.number), device=param.device)],
            lr=step.lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=step.weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )

    return Rule(states=("exp_avg", "exp_avg_sq"), update=update)


def apex_adam(beta1: float, beta2: float, eps: float) -> Rule:
    """The same by the kernel of apex's FusedAdam. Raises ValueError where apex, or its kernel, is not installed."""
    try:
        kernel = import_module("amp_C").multi_tensor_adam
        apply = import_module("apex.multi_tensor_apply").multi_tensor_applier
    except ImportError as error:
        raise ValueError(
            f"--adam-kernel apex: apex is not installed with its CUDA extensions ({error}). Use --adam-kernel torch."
        ) from error

    def update(param: Tensor, grad: Tensor, states: list[Tensor], step: StepSize) -> None:
        nothing_overflows = torch.zeros(1, dtype=torch.int, device=param.device)
        decoupled, correct_bias = 1, 1
        tensors = [[grad], [param], [states[0]], [states[1]]]
        sizes = (step.lr, beta1, beta2, eps, step.number, decoupled, correct_bias, step.weight_decay)
        apply(kernel, nothing_overflows, tensors, *sizes)

    return Rule(states=("exp_avg", "exp_avg_sq"), update=update)


def sgd(momentum: float) -> Rule:
    """Stochastic gradient descent with heavy-ball momentum; weight decay is part of the gradient."""

    def update(param: Tensor, grad: Tensor, states: list[Tensor], step: StepSize) -> None:
        if step.weight_decay:
            grad = grad.add(param, alpha=step.weight_decay)
        velocity = states[0].mul_(momentum).add_(grad)
        param.add_(velocity, alpha=-step.lr)

    return Rule(states=("momentum",), update=update)
