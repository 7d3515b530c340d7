"""What a run reports, and to whom: records are values, sinks write them somewhere."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One iteration that made an update."""

    iteration: int
    global_batch_size: int
    lm_loss: float
    """Nats per token."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class TrainRecord:
    """One logged iteration; rates and times are means over the iterations since the last record."""

    iteration: int
    train_iters: int
    """The iteration at which the run is complete."""
    consumed_samples: int
    global_batch_size: int
    lm_loss: float
    """Nats per token."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    tokens_per_second: float
    """Of all ranks together."""
    iteration_time: float
    """Seconds."""
    tflops_per_rank: float
    memory_bytes: int
    """The most that this rank held so far."""
    skipped: int
    """Iterations of the run that made no update."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """More numbers, by name."""
    times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds that each rank spent in the parts of an iteration, by their names."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """The loss over held-out tokens. `split` is `validation` or `test`."""

    iteration: int
    split: str
    loss: float
    """Nats per token."""
    tokens: int

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where a float cannot hold it."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


class Sink:
    """A place where records go. This one drops them: it is what a quiet rank logs to."""

    flag = ""
    """What asks for it, where an error must name it."""

    def step(self, record: StepRecord) -> None:
        """Take one iteration, as it comes."""

    def train(self, record: TrainRecord) -> None:
        """Take one logged iteration."""

    def evaluation(self, record: EvaluationRecord) -> None:
        """Take the result of one evaluation."""

    def note(self, text: str) -> None:
        """Take a line meant for a reader alone: what was loaded, saved, skipped."""

    def close(self) -> None:
        """Write what is pending."""


class Logger(Sink):
    """Hands everything to each of its sinks, in order. One that cannot write ends no run: the others tell of it, once.

    Only a terminal or pipe that is gone is raised.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = tuple(sinks)
        self._failing: set[Sink] = set()

    def step(self, record: StepRecord) -> None:
        self._each(lambda sink: sink.step(record))

    def train(self, record: TrainRecord) -> None:
        self._each(lambda sink: sink.train(record))

    def evaluation(self, record: EvaluationRecord) -> None:
        self._each(lambda sink: sink.evaluation(record))

    def note(self, text: str) -> None:
        self._each(lambda sink: sink.note(text))

    def close(self) -> None:
        self._each(lambda sink: sink.close())

    def _each(self, tell: Callable[[Sink], None]) -> None:
        for sink in self.sinks:
            try:
                tell(sink)
            except BrokenPipeError:
                raise
            except OSError as error:
                if sink not in self._failing:
                    self._failing.add(sink)
                    self.note(f"{sink.flag} cannot write: {error}. Training goes on; what it missed is lost.")
