"""From logits to the next token."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 leave the whole vocabulary in play."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        problems = [
            text
            for wrong, text in [
                (not 0 <= self.temperature < math.inf, f"--temperature {self.temperature} must be 0 or more. Try 0.8."),
                (self.top_k < 0, f"--top-k {self.top_k} must be 0 (all) or more. Try 40."),
                (not 0 < self.top_p <= 1, f"--top-p {self.top_p} must lie above 0 and be at most 1. Try 0.9."),
            ]
            if wrong
        ]
        if problems:
            raise ValueError("\n".join(problems))


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """The next token by logits [v].

    Top-k keeps the k likeliest; top-p then keeps the fewest likeliest that together reach probability p (Holtzman et
    al. 2020).
    """
    if sampling.temperature == 0:
        return int(logits.argmax())
    logits, tokens = (logits.double() / sampling.temperature).sort(descending=True, stable=True)
    if sampling.top_k:
        logits, tokens = logits[: sampling.top_k], tokens[: sampling.top_k]
    probs = logits.softmax(0)
    before = probs.cumsum(0) - probs
    probs = probs.where(before < sampling.top_p, 0)
    return int(tokens[torch.multinomial(probs, 1, generator=generator)])
