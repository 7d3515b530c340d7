"""The human line: rewritten in place on a terminal, one line per logged iteration anywhere else."""

import datetime
import shutil
from typing import TextIO

from megalite.observe.record import EvaluationRecord, Sink, TrainRecord

CLEAR = "\r\x1b[K"
"""Back to the line's start, and erase it."""


class Console(Sink):
    """Prints to `stream`, usually stdout."""

    flag = "The console"

    def __init__(self, stream: TextIO, *, times: str = "minmax") -> None:
        self.stream, self.times = stream, times
        """Of the ranks' times, `max`, `minmax` or `all` are shown."""
        self.is_live = stream.isatty()
        self.pending = False
        """A live line stands unfinished on the terminal."""

    def train(self, record: TrainRecord) -> None:
        line = train_line(record)
        if record.times:
            self.note(f"{line}\n{times_line(record, self.times)}")
            return
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
    parts += [f"{name.replace('_', ' ')} {value:.6g}" for name, value in record.statistics.items()]
    if record.skipped:
        parts.append(f"skipped {record.skipped}")
    return " | ".join(parts)


def times_line(record: TrainRecord, which: str) -> str:
    """The parts of an iteration in milliseconds: of all ranks the longest, the shortest and the longest, or all."""
    shown = {
        "max": lambda ranks: f"{max(ranks):.2f}",
        "minmax": lambda ranks: f"{min(ranks):.2f} to {max(ranks):.2f}",
        "all": lambda ranks: " ".join(f"{rank:.2f}" for rank in ranks),
    }[which]
    parts = [f"{name} {shown([1000 * s for s in seconds])}" for name, seconds in record.times.items()]
    return f"  ms: {' | '.join(parts)}"
