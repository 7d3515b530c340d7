"""Causal attention in blocks of queries, for short sequences on the CPU, where it beats torch's fused kernel.

queries  |####|            each block of queries meets the keys up to its own end, in one batched product;
         |####|####|       only the block on the diagonal needs a mask
         |####|####|####|
"""

import math
from typing import Any

import torch
from torch import Tensor

BLOCK = 64
LONGEST = 512
"""Probabilities are kept for backward: s^2 / 2 numbers for each head."""


def suits(q: Tensor, k: Tensor) -> bool:
    """Whether `blocked_attention` can and should take these: q and k [b, n, s, d]."""
    length = q.shape[2]
    return (
        q.device.type == "cpu"
        and q.dtype.itemsize >= 4  # narrower probabilities would lose more than torch's kernel does
        and torch.is_grad_enabled()
        and q.shape == k.shape
        and length % BLOCK == 0
        and length <= LONGEST
    )


class _Blocked(torch.autograd.Function):
    """forward    P_i = softmax(Q_i K_:i^T / sqrt(d)),  out_i = P_i V_:i
    backward   dS_i = softmax'(dout_i V_:i^T),  dQ_i = dS_i K_:i,  dK_:i += dS_i^T Q_i,  dV_:i += P_i^T dout_i
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, n, s, d = q.shape
        future = torch.full((BLOCK, BLOCK), -math.inf, dtype=q.dtype).triu_(1)
        q = torch.mul(q, d**-0.5, out=q.new_empty(q.shape)).view(b * n, s, d)
        k, v = k.reshape(b * n, s, d), v.reshape(b * n, s, d)
        out, probs = q.new_empty(s // BLOCK, b * n, BLOCK, d), []
        for start in range(0, s, BLOCK):
            stop = start + BLOCK
            scores = torch.bmm(q[:, start:stop], k[:, :stop].mT)
            scores[:, :, start:].add_(future)
            probs.append(torch.softmax(scores, -1, out=scores))
            torch.bmm(scores, v[:, :stop], out=out[start // BLOCK])
        ctx.save_for_backward(q, k, v, *probs)
        # [s, b, n, d] in memory, as the linear that follows wants it.
        return out.view(-1, b, n, BLOCK, d).permute(0, 3, 1, 2, 4).reshape(s, b, n, d).permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, *probs = ctx.saved_tensors
        shape, (_, s, d) = grads[0].shape, q.shape
        dout, k = grads[0].reshape(q.shape), k * d**-0.5
        dq, dk, dv = q.new_empty(s // BLOCK, q.shape[0], BLOCK, d), torch.zeros_like(q), torch.zeros_like(q)
        for i, p in enumerate(probs):
            start, stop = i * BLOCK, (i + 1) * BLOCK
            dout_i = dout[:, start:stop]
            dp = torch.bmm(dout_i, v[:, :stop].mT)
            ds = torch._softmax_backward_data(dp, p, -1, p.dtype)
            torch.bmm(ds, k[:, :stop], out=dq[i])
            dk[:, :stop] += torch.bmm(ds.mT, q[:, start:stop])
            dv[:, :stop] += torch.bmm(p.mT, dout_i)
        dq = dq.view(-1, *shape[:2], BLOCK, d).permute(1, 2, 0, 3, 4).reshape(shape)
        return dq, dk.view(shape), dv.view(shape)


def blocked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention: q, k, v [b, n, s, d], s a multiple of BLOCK -> [b, n, s, d]."""
    return _Blocked.apply(q, k, v)
