"""Continue a text, one token at a time, at any tensor parallel size."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from megalite.comm.collectives import all_gather
from megalite.generate.sampling import Sampling, choose
from megalite.model.context import Context, KVCache
from megalite.model.gpt import GPT


@torch.no_grad()
def logits(model: GPT, tokens: Tensor, context: Context) -> Tensor:
    """tokens [b, s] -> logits [b, s, vocabulary] in full on every tp rank, without the columns that are padding."""
    head = model.head
    columns = model(tokens, context).permute(2, 1, 0)  # [v, b, s]: the gathered dimension first
    return all_gather(columns, head.layout.tp)[: head.shard.vocab_size].permute(1, 2, 0)


@torch.no_grad()
def generate(
    model: GPT, prompt: Sequence[int], *, max_new_tokens: int, sampling: Sampling, eod: int, seed: int, limit: int
) -> Iterator[int]:
    """The tokens that follow the prompt, until the end of document, `max_new_tokens`, or `limit` positions in all.

    Every tp rank must iterate; all get the same tokens, for all draw from the same seed.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    cache, new, position = KVCache(), list(prompt), 0
    for _ in range(min(max_new_tokens, limit - len(prompt))):
        context = Context(
            position_ids=torch.arange(position, position + len(new), device=device).unsqueeze(0), cache=cache
        )
        last = logits(model, torch.tensor([new], device=device), context)[0, -1]
        position += len(new)
        token = choose(last.cpu(), sampling, generator)
        if token == eod:
            return
        yield token
        new = [token]
