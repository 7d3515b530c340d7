"""Continue a text, one token at a time, in any layout."""

from collections.abc import Iterator, Sequence

import torch

from megalite.generate.sampling import Sampling, choose
from megalite.model.context import Context, KVCache
from megalite.model.inference import Inference


def generate(
    model: Inference,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    eod: int,
    seed: int,
    limit: int,
    device: torch.device,
) -> Iterator[int]:
    """The tokens that follow the prompt, until the end of document, `max_new_tokens`, or `limit` positions in all.

    Every rank of the model must iterate; all get the same tokens, for all draw from the same seed.
    """
    generator = torch.Generator().manual_seed(seed)
    cache, new, position = KVCache(), list(prompt), 0
    for _ in range(min(max_new_tokens, limit - len(prompt))):
        context = Context(
            position_ids=torch.arange(position, position + len(new), device=device).unsqueeze(0), cache=cache
        )
        last = model(torch.tensor([new], device=device), context, last=1)[0, -1]
        position += len(new)
        token = choose(last.cpu(), sampling, generator)
        if token == eod:
            return
        yield token
        new = [token]
