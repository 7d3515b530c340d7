"""Causal attention in which a token sees its own document only, without a mask.

samples     |a a a b b|c d d d d|      documents of about one length make a group, padded behind their ends:
groups      |a a a -|   |b b|          causality hides the padding, so plain causal attention over a group's
            |d d d d|   |c -|          short sequences is all that is left to do
"""

from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from megalite.device import is_ampere_or_newer
from megalite.ops.attention import fused_attention, hidden_keys

SMALLEST = 8
"""Lengths of groups are multiples of it."""


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Where the documents of a micro-batch of b samples of s tokens lie. Rows are tokens in [s, b] order."""

    bounds: Tensor
    """Where each begins, sample after sample, and the end of the last [n + 1], int32."""
    longest: int
    groups: tuple[tuple[int, int], ...]
    """How many documents each group has, and how long it makes them."""
    rows: Tensor
    """The row at each place of the groups, int64; in the padding that of the document's last token."""
    places: Tensor
    """The place of each row [s b], int64."""
    padding: Tensor
    """The places that are padding, int64."""


def find_documents(segment_ids: Tensor) -> Documents:
    """The documents of samples [b, s] in which neighbours of one document have one id."""
    b, s = segment_ids.shape
    ids = segment_ids.cpu()
    begins = torch.ones(b, s, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = begins.flatten().nonzero().flatten()
    lengths = torch.diff(starts, append=torch.tensor([b * s]))
    padded = _padded(lengths, s)
    groups, rows, real = [], [], []
    for length in padded.unique().tolist():
        first, size = starts[padded == length, None], lengths[padded == length, None]
        offsets = torch.arange(length)
        tokens = first + torch.minimum(offsets, size - 1)
        groups.append((len(first), length))
        rows.append((tokens % s * b + tokens // s).flatten())
        real.append((offsets < size).flatten())
    row, is_real = torch.cat(rows), torch.cat(real)
    places = torch.empty(b * s, dtype=torch.int64)
    places[row[is_real]] = is_real.nonzero().flatten()
    device = segment_ids.device
    return Documents(
        bounds=torch.cat([starts, torch.tensor([b * s])]).to(device, torch.int32),
        longest=int(lengths.max()),
        groups=tuple(groups),
        rows=row.to(device),
        places=places.to(device),
        padding=(~is_real).nonzero().flatten().to(device),
    )


def _padded(lengths: Tensor, longest: int) -> Tensor:
    """Lengths rounded up to one of four in each octave, so that groups are few and little is padding."""
    step = (2 ** torch.ceil(torch.log2(lengths.double())) / 8).long().clamp(min=SMALLEST)
    return (-(-lengths // step) * step).clamp(max=longest)


class _Rows(torch.autograd.Function):
    """forward    y = x[there]
    backward   dx = dy[back], where a row of x that came several times takes the gradient of one of them alone, and
               one that did not come (`left`) has none
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor, left: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, left)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        back, left = ctx.saved_tensors
        grad = grads[0].index_select(0, back)
        return grad if left is None else grad.index_fill_(0, left, 0), None, None, None


def document_attention(q: Tensor, k: Tensor, v: Tensor, documents: Documents, *, window: int | None) -> Tensor:
    """q [b, np, s, hn], k and v [b, ng, s, hn] -> [b, np, s, hn]. `window`: see `hidden_keys`."""
    if _has_kernel(q):
        return _by_kernel(q, k, v, documents, window)
    b, n, s, d = q.shape
    sizes = [count * length for count, length in documents.groups]
    # In the padding is a token again, whose gradient there is 0: no query of a document sees behind its end.
    grouped = [
        _Rows.apply(x.permute(2, 0, 1, 3).flatten(0, 1), documents.rows, documents.places, None).split(sizes)
        for x in (q, k, v)
    ]
    out = []
    for (count, length), *heads in zip(documents.groups, *grouped, strict=True):
        hidden = hidden_keys(length, length, window=window, segment_ids=None, device=q.device)
        queries, keys, values = (x.unflatten(0, (count, length)).transpose(1, 2) for x in heads)
        mixed = fused_attention(queries, keys, values, hidden)
        out.append(mixed.transpose(1, 2).flatten(0, 1))
    rows = _Rows.apply(torch.cat(out), documents.places, documents.rows, documents.padding)
    return rows.view(s, b, n, d).permute(1, 2, 0, 3)


def _has_kernel(q: Tensor) -> bool:
    """Whether torch's flash attention over sequences of any lengths takes these. It needs Ampere or newer."""
    fits = q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] in range(8, 257, 8)
    return fits and is_ampere_or_newer(q.device)


def _by_kernel(q: Tensor, k: Tensor, v: Tensor, documents: Documents, window: int | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # brings torch's compiler: seconds of every start

    more: dict[str, Any] = {}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in signature(varlen_attn).parameters:
            more = {"enable_gqa": True}
        else:  # torch 2.11
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    queries, keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    out = varlen_attn(
        queries,
        keys,
        values,
        cu_seq_q=documents.bounds,
        cu_seq_k=documents.bounds,
        max_q=documents.longest,
        max_k=documents.longest,
        window_size=(-1 if window is None else window, 0),
        **more,
    )
    assert isinstance(out, Tensor)
    return out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)
