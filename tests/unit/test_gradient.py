"""Main grads: the first write of a step overwrites, the rest add, all in main precision."""

import gc
import weakref

import pytest
import torch
from torch import nn

from megalite.arith.treatment import Treatment
from megalite.comm.collectives import start_all_reduce, start_reduce_scatter
from megalite.data_parallel.buffer import GradBuffer
from megalite.data_parallel.owned_grads import OwnedGrads
from megalite.data_parallel.policy import Sharded
from megalite.gradient import MainGrad, attach, main_grad_of
from megalite.mesh import Group
from megalite.shard import Init, ShardSpec
from megalite.tensor_parallel.embedding import lookup


def main_grad(shape: tuple[int, ...]) -> MainGrad:
    memory = torch.full(shape, torch.nan)
    return MainGrad(lambda: memory, lambda: None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_way_in_overwrites_first_and_adds_then(dtype: torch.dtype) -> None:
    a, b = torch.randn(3, 5).to(dtype), torch.randn(5, 4).to(dtype)
    ids, rows = torch.tensor([2, 0, 2]), torch.randn(3, 4).to(dtype)
    product, summed = (a @ b).to(torch.float32), torch.zeros(3, 4).index_add_(0, ids, rows.float())
    for first in ("product", "rows", "add"):
        grad = main_grad((3, 4))
        for way in (first, "product", "rows", "add"):
            if way == "product":
                grad.add_product(a, b)
            elif way == "rows":
                grad.add_rows(ids, rows)
            else:
                grad.add(product)
        extra = summed if first == "rows" else product
        assert torch.allclose(grad.view(), 2 * product + summed + extra, atol=1e-5)


def test_a_parameter_without_a_write_has_gradient_zero() -> None:
    grad = main_grad((2, 2))
    grad.close()
    assert torch.equal(grad.view(), torch.zeros(2, 2))


def test_a_frequent_token_in_bf16_loses_nothing() -> None:
    """bfloat16 cannot count beyond 256; a table's gradient must."""
    table = nn.Parameter(torch.zeros(2, 1, dtype=torch.bfloat16))
    grad = main_grad((2, 1))
    attach(table, grad)
    lookup(torch.zeros(4096, dtype=torch.int64), table).sum().backward()
    assert grad.view().tolist() == [[4096.0], [0.0]]


def test_what_a_parameter_is_attached_to_is_freed_with_it() -> None:
    """A buffer that outlives its run keeps process groups alive, and their threads."""

    class Buffer:
        def __init__(self) -> None:
            self.parameter = nn.Parameter(torch.zeros(2, 2))
            self.memory = torch.zeros(2, 2)
            attach(self.parameter, MainGrad(lambda: self.memory, self.written))

        def written(self) -> None:
            pass

    buffer = Buffer()
    buffer.parameter.sum().backward()
    assert torch.equal(buffer.memory, torch.ones(2, 2))
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is None


def test_a_bucket_whose_room_is_taken_is_written_elsewhere() -> None:
    """Where only shards are kept, neighbours share memory; here all buckets are written before the first is sent."""
    alone = Group(name="alone", ranks=(0,), rank=0)
    weights = [nn.Parameter(torch.zeros(3)) for _ in range(4)]
    buffer = GradBuffer(
        {0: [(str(n), weight, ShardSpec(global_shape=(3,), init=Init())) for n, weight in enumerate(weights)]},
        treat=lambda name, shape: Treatment(decayed=False),
        tied=frozenset(),
        bucket_size=1,
        policy=Sharded(alone, alone, start_reduce_scatter=start_reduce_scatter, start_all_reduce=start_all_reduce),
        keep=OwnedGrads,
        overlap=True,
        overlap_gather=False,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for micro_batch in (1, 2):
        buffer.expect_last(0)
        for number, weight in enumerate(weights):
            main_grad_of(weight).add(torch.full((3,), 10.0**number * micro_batch))
        buffer.flush(0)
    buffer.finish()
    found = {piece.slot.name: buffer.grads.of(piece).tolist() for piece in buffer.pieces}
    assert found == {str(number): [3 * 10.0**number] * 3 for number in range(4)}
