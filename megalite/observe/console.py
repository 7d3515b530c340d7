"""The human line: rewritten in place on a terminal, one line per logged iteration anywhere else."""

import datetime
import shutil
from typing import TextIO

from megalite.observe.record import EvaluationRecord, Sink, TrainRecord

CLEAR = "\r\x1b[K"
"""Back to the line's start, and erase it."""


class Console(Sink):
    """Prints to `stream`, usually stdout."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_live = stream.isatty()
        self.pending = False
        """A live line stands unfinished on the terminal."""

    def train(self, record: TrainRecord) -> None:
        line = train_line(record)
        if not self.is_live:
            self.note(line)
            return
        # A wrapped line could not be erased.
        self.stream.write(CLEAR + line[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()
        self.pending = True

    def evaluation(self, record: EvaluationRecord) -> None:
        self.close()  # the training line before an evaluation stays on the screen
        self.note(
            f"step {record.iteration}: {record.split} loss {record.loss:.4f}, "
            f"perplexity {record.perplexity:.4g}, {record.tokens:,} tokens"
        )

    def note(self, text: str) -> None:
        self.stream.write((CLEAR if self.pending else "") + text + "\n")
        self.stream.flush()
        self.pending = False

    def close(self) -> None:
        if self.pending:
            self.stream.write("\n")
            self.stream.flush()
            self.pending = False


def train_line(record: TrainRecord) -> str:
    """One iteration for a reader: where the run is, how it does, when it ends."""
    width = len(str(record.train_iters))
    left = datetime.timedelta(seconds=round((record.train_iters - record.iteration) * record.iteration_time))
    parts = [
        f"step {record.iteration:{width}d}/{record.train_iters}",
        f"loss {record.lm_loss:.4f}",
        f"grad norm {record.grad_norm:.3f}",
        f"lr {record.learning_rate:.3e}",
        f"{record.tokens_per_second:,.0f} tokens/s",
        f"ETA {left}",
    ]
    if record.skipped:
        parts.append(f"skipped {record.skipped}")
    return " | ".join(parts)
