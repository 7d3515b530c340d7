"""The two sharded linears. Each owns its communication, and saves its local input.

Shapes, with e the rows between regions (s under plain tensor parallelism, s / tp under sequence parallelism):

    column   x [e, b, in]        ->  y [s, b, out / tp]    the weight's outputs are split
    row      x [s, b, in / tp]   ->  y [e, b, out]         the weight's inputs are split
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megalite.gradient import WeightGrads, main_grad_of
from megalite.shard import Init, ShardSpec, replicated
from megalite.tensor_parallel.layout import TensorParallel


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _column_sums(x: Tensor) -> Tensor:
    """x [n, m] -> [m], as a product: a matrix multiplication adds up columns faster than a sum over rows does."""
    return (x.new_ones(1, x.shape[0]) @ x).squeeze(0)


class _ColumnLinear(torch.autograd.Function):
    """forward    y = gather(x) W^T + b
    backward   dx = reduce(dy W)        started first, so that dW is computed while it travels
               dW = dy^T gather(x)      x is gathered again rather than kept; now or later, as `weight_grads` has it
               db = sum of dy
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layout: TensorParallel, weight_grads: WeightGrads
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.layout, ctx.weight_grads = weight, layout, weight_grads
        return F.linear(layout.gather(x).wait(), weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        # What was saved comes back as another object where hooks on saved tensors are in force.
        dy, layout, parameter = grads[0], ctx.layout, ctx.parameter
        gathering = layout.gather(x) if ctx.weight_grads.at_once else None
        reducing = layout.reduce(dy @ weight)

        def weight_grad() -> None:
            full = (gathering or layout.gather(x)).wait()
            main_grad_of(parameter).add_product(_rows(dy).t(), _rows(full))

        ctx.weight_grads.add(parameter, weight_grad, x, dy)
        db = _column_sums(_rows(dy)) if ctx.needs_input_grad[2] else None
        return reducing.wait(), None, db, None, None


class _RowLinear(torch.autograd.Function):
    """forward    y = reduce(x W^T)
    backward   dx = gather(dy) W
               dW = gather(dy)^T x
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layout: TensorParallel, weight_grads: WeightGrads) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.layout, ctx.weight_grads = weight, layout, weight_grads
        return layout.reduce(F.linear(x, weight)).wait()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight = ctx.saved_tensors
        dy = ctx.layout.gather(grads[0]).wait()
        parameter = ctx.parameter
        ctx.weight_grads.add(parameter, lambda: main_grad_of(parameter).add_product(_rows(dy).t(), _rows(x)), x, dy)
        return dy @ weight, None, None, None


def column_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, layout: TensorParallel, weight_grads: WeightGrads
) -> Tensor:
    """x [e, b, in] -> [s, b, out / tp]; its weight gradient goes to the weight's main grad."""
    return _ColumnLinear.apply(x, weight, bias, layout, weight_grads)


class ColumnParallelLinear(nn.Module):
    """A linear whose output, of the global shape `out_shape`, is split over tp along its dimension `split_dim`."""

    def __init__(
        self,
        in_features: int,
        out_shape: tuple[int, ...],
        *,
        split_dim: int,
        bias: bool,
        init: Init,
        layout: TensorParallel,
        weight_grads: WeightGrads,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layout, self.weight_grads = layout, weight_grads
        tp = layout.tp
        part = out_shape[split_dim] // tp.size
        assert part * tp.size == out_shape[split_dim], "validate.py lets only even splits through"
        split = (tp.rank * part, (tp.rank + 1) * part)
        rows = torch.Size(out_shape).numel() // tp.size
        self.weight = nn.Parameter(torch.empty(rows, in_features, dtype=dtype, device=device))
        self.shard_specs = {
            "weight": ShardSpec(global_shape=(*out_shape, in_features), init=init, split_dim=split_dim, split=split)
        }
        self.bias = nn.Parameter(torch.empty(rows, dtype=dtype, device=device)) if bias else None
        if bias:
            self.shard_specs["bias"] = ShardSpec(global_shape=out_shape, init=Init(), split_dim=split_dim, split=split)

    def forward(self, x: Tensor) -> Tensor:
        return column_linear(x, self.weight, self.bias, self.layout, self.weight_grads)


class RowParallelLinear(nn.Module):
    """A linear whose input is split over tp. The bias is added once, after the sum over tp."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        init: Init,
        layout: TensorParallel,
        weight_grads: WeightGrads,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layout, self.weight_grads = layout, weight_grads
        tp = layout.tp
        part = in_features // tp.size
        assert part * tp.size == in_features, "validate.py lets only even splits through"
        self.weight = nn.Parameter(torch.empty(out_features, part, dtype=dtype, device=device))
        split = (tp.rank * part, (tp.rank + 1) * part)
        self.shard_specs = {
            "weight": ShardSpec(global_shape=(out_features, in_features), init=init, split_dim=1, split=split)
        }
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device)) if bias else None
        if bias:
            self.shard_specs["bias"] = replicated((out_features,), init=Init(), sum_grad_over_tp=layout.shards_sequence)

    def forward(self, x: Tensor) -> Tensor:
        y = _RowLinear.apply(x, self.weight, self.layout, self.weight_grads)
        return y if self.bias is None else y + self.bias
