"""The machine's log: one JSON object a line, appended, so that a resumed run continues its file."""

import json
import math
from pathlib import Path
from typing import Any

from megalite.observe.record import EvaluationRecord, Sink, TrainRecord


class Jsonl(Sink):
    """Appends to `path`; each object is on disk, whole, before the next step."""

    flag = "--log-jsonl"

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a+b", buffering=0)
        self._is_torn = True

    def train(self, record: TrainRecord) -> None:
        self._write(
            iteration=record.iteration,
            consumed_samples=record.consumed_samples,
            global_batch_size=record.global_batch_size,
            lm_loss=record.lm_loss,
            grad_norm=record.grad_norm,
            learning_rate=record.learning_rate,
            tokens_per_second=record.tokens_per_second,
            iteration_time=record.iteration_time,
            tflops_per_rank=record.tflops_per_rank,
            memory_bytes=record.memory_bytes,
            skipped=record.skipped,
            **record.statistics,
            **({"times": {name: max(ranks) for name, ranks in record.times.items()}} if record.times else {}),
        )

    def evaluation(self, record: EvaluationRecord) -> None:
        self._write(
            **{
                "iteration": record.iteration,
                f"{record.split}_loss": record.loss,
                "perplexity": record.perplexity,
                "tokens": record.tokens,
            }
        )

    def close(self) -> None:
        self.file.close()

    def _write(self, **fields: Any) -> None:
        # JSON has no word for a value that is not finite: it is written as null.
        lawful = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in fields.items()
        }
        if self._is_torn:
            self._end_torn_line()
        self._is_torn = True  # until it is known to be whole: the disk may be full
        self.file.write((json.dumps(lawful) + "\n").encode())
        self._is_torn = False

    def _end_torn_line(self) -> None:
        """A run that was killed, or a full disk, may have left half a line; what follows must not be glued to it."""
        if self.file.seek(0, 2):
            self.file.seek(-1, 2)
            if self.file.read(1) != b"\n":
                self.file.write(b"\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The objects of a log in the order of their writing; a torn line is left out."""
    objects = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            objects.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return objects
