"""What a run takes of each corpus: said before training, since nothing that follows would show it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one part of a run (train, valid, test) takes of one corpus."""

    part: str
    prefix: str
    tokens: int
    """Tokens that the corpus has for this part: one epoch."""
    samples: int
    """Samples that are taken."""
    seq_length: int

    @property
    def epochs(self) -> float:
        """How often the tokens are gone through."""
        return self.samples * self.seq_length / self.tokens

    def __str__(self) -> str:
        # The last label is one more token.
        used, rounds = self.samples * self.seq_length, max(1, -(-(self.samples * self.seq_length + 1) // self.tokens))
        share = f"{self.epochs:.2f} are used" if rounds > 1 else f"{self.tokens - used} stay unused"
        return (
            f"{self.part}: {self.samples} samples of {self.seq_length} tokens, {used} in all, from {rounds} "
            f"epoch{'s' * (rounds > 1)} of {self.tokens} tokens of {self.prefix}; {share}"
        )


def check_epochs(usage: Sequence[Usage], most: float) -> None:
    """ValueError where training goes through a corpus more than `most` times."""
    for used in usage:
        if used.part == "train" and used.epochs > most:
            fitting = int(most * used.tokens / used.seq_length)
            raise ValueError(
                f"--max-epochs {most:g}: training goes through {used.prefix} {used.epochs:.2f} times: {used.samples} "
                f"samples of its {used.tokens} tokens. {fitting} samples keep to it: train for less, give this corpus "
                f"a smaller weight, or give more data."
            )
