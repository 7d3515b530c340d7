"""Initial weights as a function of (seed, parameter name): the same model in every layout."""

import torch
from torch import Tensor, nn

from megalite.ops.philox import derive_key
from megalite.shard import ShardSpec, parameters_with_specs

_BLOCK = 512
"""Rows drawn from one generator: a rank skips the blocks it has no part of."""


@torch.no_grad()
def init_weights(model: nn.Module, seed: int) -> None:
    """Fill every parameter of the model as its record says."""
    for name, parameter, spec in parameters_with_specs(model):
        target = spec.view(parameter.data)
        if spec.init.is_random:
            _draw(target, spec, name, seed)
        else:
            target.fill_(spec.init.constant)


def _draw(target: Tensor, spec: ShardSpec, name: str, seed: int) -> None:
    """Random numbers for the box of a tensor, drawn on the CPU in at least fp32 at the global shape.

    The global tensor counts as rows of its last dimension; rows come in blocks, each from a generator of its own.
    """
    if target.numel() == 0:
        return
    *leading, columns = spec.global_shape
    boxes = [slice(*bounds) for bounds in spec.box]
    numbers = torch.arange(torch.Size(leading).numel()).view(leading)[tuple(boxes[:-1])].reshape(-1)
    rows = target.view(len(numbers), -1)
    dtype = torch.promote_types(target.dtype, torch.float32)
    for block in (numbers // _BLOCK).unique().tolist():
        low, high = derive_key(seed, "init", name, block)
        generator = torch.Generator().manual_seed((high << 32 | low) % 2**63)
        values = torch.empty(_BLOCK, columns, dtype=dtype)
        if spec.init.bound:
            values.uniform_(-spec.init.bound, spec.init.bound, generator=generator)
        else:
            values.normal_(0, spec.init.std, generator=generator)
        mine = numbers // _BLOCK == block
        drawn = values[numbers[mine] - block * _BLOCK][:, boxes[-1]]
        rows[mine.to(rows.device)] = drawn.to(device=rows.device, dtype=rows.dtype)
