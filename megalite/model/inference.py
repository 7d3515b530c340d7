"""The stages of a model as one function from tokens to logits."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from megalite.comm.collectives import all_gather, all_reduce
from megalite.model.context import Context
from megalite.model.gpt import GPT
from megalite.pipeline_parallel.executor import execute, unwatched
from megalite.pipeline_parallel.mail import Mail
from megalite.schedule.action import Program


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the stages are asked: tokens [b, s], and how many of the last positions to give logits for."""

    tokens: Tensor
    context: Context
    last: int


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """A stage as the executor sees it."""

    model: GPT
    is_last: bool

    def empty_input(self, microbatch: Request) -> Tensor:
        return self.model.empty_hidden(*microbatch.tokens.shape)

    def forward(self, x: Tensor | None, microbatch: Request) -> Tensor:
        hidden = self.model.hidden(microbatch.tokens if x is None else x, microbatch.context)
        if not self.is_last:
            return hidden
        columns = self.model.head(self.model.final_norm(hidden[-microbatch.last :]))
        # [v, b, s]: the gathered dimension first.
        return all_gather(columns.permute(2, 1, 0), self.model.layout.tp).permute(1, 2, 0)

    def backward(self, output: GradientEdge, grad: Tensor | None, *, final: bool, split: bool) -> None:
        raise AssertionError("inference has no backward")

    def weight_grads(self, *, final: bool) -> None:
        raise AssertionError("inference has no backward")

    def sync_grads(self) -> None:
        raise AssertionError("inference has no backward")


class Inference:
    """Logits, on every rank of the model alike. `program` is forward only, of one micro-batch."""

    def __init__(
        self,
        chunks: Mapping[int, GPT],
        *,
        program: Program,
        mail: Mail,
        vocab_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.chunks, self.program, self.mail = chunks, program, mail
        self.vocab_size, self.dtype = vocab_size, dtype

    @torch.no_grad()
    def __call__(self, tokens: Tensor, context: Context, *, last: int | None = None) -> Tensor:
        """tokens [b, s] -> logits [b, s, vocabulary] without padding; of the `last` positions alone where given.

        Every rank of the model must call it, with the same tokens.
        """
        batch, sequence = tokens.shape
        request = Request(tokens=tokens, context=context, last=last or sequence)
        chunks = {s: _Stage(model=m, is_last=s == self.mail.last_stage) for s, m in self.chunks.items()}
        found = execute(self.program, chunks, [request], self.mail, unwatched)
        if found:
            logits = found[0][..., : self.vocab_size].contiguous()
        else:
            logits = torch.zeros(batch, request.last, self.vocab_size, dtype=self.dtype, device=tokens.device)
        return all_reduce(logits, self.mail.link.line)
