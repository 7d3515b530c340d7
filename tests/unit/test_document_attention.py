"""Attention document by document equals attention under a mask, forward and backward."""

import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from megalite.ops import document_attention as module
from megalite.ops.attention import hidden_keys, softmax_attention
from megalite.ops.document_attention import document_attention, find_documents

F64 = torch.float64
LENGTHS = {
    "one each": [[24], [24]],
    "single tokens": [[1, 1, 22], [23, 1]],
    "many": [[3, 5, 3, 1, 12], [9, 8, 7], [24]],
    "all single": [[1] * 24],
    "blocks": [[64, 64, 128], [200, 56]],
}
"""The lengths of the documents in each sample."""


def segments(lengths: list[list[int]]) -> Tensor:
    return torch.stack([torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)) for sizes in lengths])


def heads(b: int, s: int, groups: int) -> list[Tensor]:
    """Queries, keys and values as they come out of one projection."""
    random = torch.Generator().manual_seed(s)
    qkv = torch.randn(s, b, groups, 4, 8, generator=random, dtype=F64)
    q, k, v = qkv.split([2, 1, 1], dim=3)
    return [x.flatten(2, 3).permute(1, 2, 0, 3).requires_grad_() for x in (q, k, v)]


def results(attend: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of q, k and v."""
    out = attend(*inputs)
    weights = torch.cos(torch.arange(out.numel(), dtype=F64)).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


def masked(ids: Tensor, window: int | None) -> Callable[..., Tensor]:
    length = ids.shape[1]
    hidden = hidden_keys(length, length, window=window, segment_ids=ids, device=ids.device)
    return lambda q, k, v: softmax_attention(q, k, v, hidden)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", LENGTHS)
def test_documents_one_by_one_equal_a_mask(name: str, groups: int, window: int | None) -> None:
    ids = segments(LENGTHS[name])
    inputs, documents = heads(*ids.shape, groups), find_documents(ids)
    ours = results(lambda q, k, v: document_attention(q, k, v, documents, window=window), inputs)
    for found, expected in zip(ours, results(masked(ids, window), inputs), strict=True):
        assert torch.allclose(found, expected, atol=1e-10)


def test_padding_is_little_and_groups_are_few() -> None:
    random = torch.Generator().manual_seed(0)
    ids = (torch.rand(4, 4096, generator=random) < 1 / 100).cumsum(1)
    documents = find_documents(ids)
    assert len(documents.groups) <= 4 * math.log2(documents.longest)
    assert documents.rows.numel() < 1.2 * ids.numel()


@pytest.mark.parametrize("takes_groups", [True, False])
@pytest.mark.parametrize("window", [None, 2])
def test_what_a_kernel_for_any_lengths_is_given(
    window: int | None, takes_groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel runs on a GPU only; here another that does what its manual says stands for it."""
    ids = segments(LENGTHS["many"])
    inputs = heads(*ids.shape, groups=3)

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, enable_gqa: bool = False, **given) -> Tensor:
        assert enable_gqa == (q.shape[1] != k.shape[1])
        case = SimpleNamespace(**given)
        bounds = case.cu_seq_q.tolist()
        assert case.cu_seq_k is case.cu_seq_q and case.cu_seq_q.dtype == torch.int32
        assert case.max_q == case.max_k == 24 and case.window_size == (-1 if window is None else window, 0)
        out = []
        for start, stop in pairwise(bounds):
            parts = [x[start:stop].transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
            hidden = hidden_keys(stop - start, stop - start, window=window, segment_ids=None, device=q.device)
            out.append(softmax_attention(*parts, hidden)[0].transpose(0, 1))
        return torch.cat(out)

    def without_groups(q: Tensor, k: Tensor, v: Tensor, **given) -> Tensor:  # torch 2.11
        return kernel(q, k, v, **given)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel if takes_groups else without_groups)
    monkeypatch.setattr(module, "_has_kernel", lambda q: True)
    ours = results(lambda q, k, v: document_attention(q, k, v, find_documents(ids), window=window), inputs)
    for found, expected in zip(ours, results(masked(ids, window), inputs), strict=True):
        assert torch.allclose(found, expected, atol=1e-10)
