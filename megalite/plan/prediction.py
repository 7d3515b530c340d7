"""What one layout comes to: memory, time and money."""

from dataclasses import dataclass, field
from functools import cached_property

from megalite.arith.flops import model_flops
from megalite.arith.parameters import count_parameters
from megalite.config.derive import padded_vocab_size
from megalite.config.size import ModelSize
from megalite.plan.flops import executed_flops
from megalite.plan.hardware import Cluster
from megalite.plan.layout import Layout, Practice
from megalite.plan.memory import RankMemory, memory_of_ranks, peak_memory
from megalite.plan.rates import Rates
from megalite.plan.step import StepTime, step_time

USABLE = 0.94
"""Share of a device's memory that a job can count on: its context, NCCL's buffers and fragments take the rest."""
DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a prediction starts from, but for the layout."""

    size: ModelSize
    """With the vocabulary as the tokenizer has it."""
    cluster: Cluster
    rates: Rates
    practice: Practice = field(default_factory=Practice)
    divisible_by: int = 128
    """The padded vocabulary is a multiple of this x tensor parallel size."""

    @property
    def budget(self) -> float:
        """Bytes of a device that may be used."""
        return self.cluster.device.memory * USABLE

    def padded(self, tensor: int) -> ModelSize:
        """The model with its vocabulary padded for so many tensor parallel ranks."""
        vocab = padded_vocab_size(self.size.vocab_size, divisible_by=self.divisible_by, tensor_parallel_size=tensor)
        return ModelSize(**{**vars(self.size), "vocab_size": vocab})


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One layout's numbers; they are worked out when they are asked for."""

    job: Job
    layout: Layout

    @cached_property
    def size(self) -> ModelSize:
        """The model with its padded vocabulary."""
        return self.job.padded(self.layout.tensor)

    @cached_property
    def parameters(self) -> int:
        """Of the model without padding."""
        return count_parameters(self.job.size).total

    @cached_property
    def memory(self) -> list[RankMemory]:
        """Of each pipeline rank."""
        return memory_of_ranks(self.size, self.layout, self.job.practice)

    @cached_property
    def peak(self) -> int:
        """Bytes on the rank with most."""
        return peak_memory(self.size, self.layout, self.job.practice)

    @property
    def fits(self) -> bool:
        return self.peak <= self.job.budget

    @cached_property
    def time(self) -> StepTime:
        """Of a step, its schedule run on paper."""
        return self._time(exact=True)

    @cached_property
    def quick_time(self) -> StepTime:
        """The same in closed form."""
        return self._time(exact=False)

    def _time(self, *, exact: bool) -> StepTime:
        job = self.job
        return step_time(self.size, self.layout, job.practice, job.cluster, job.rates, exact=exact)

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.layout.global_batch_size * self.size.seq_length

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.time.total

    @property
    def flops(self) -> int:
        """Model FLOPs of a step: attention counts as if it saw the whole square, recomputation does not count."""
        return model_flops(self.job.size, samples=self.layout.global_batch_size)

    @property
    def mfu(self) -> float:
        """Model FLOPs a second over the dense 16-bit peak of all devices."""
        return self.flops / self._peak_flops

    @property
    def hfu(self) -> float:
        """The same with what is computed twice."""
        layout = self.layout
        done = executed_flops(self.job.size, samples=layout.global_batch_size, recompute=layout.recompute)
        return done / self._peak_flops

    @property
    def _peak_flops(self) -> float:
        return self.time.total * self.layout.gpus * self.job.cluster.device.peak

    def days(self, tokens: float) -> float:
        """Until so many tokens are seen."""
        return tokens / self.tokens_per_second / DAY

    def gpu_hours(self, tokens: float) -> float:
        """All devices' hours for so many tokens."""
        return self.days(tokens) * 24 * self.layout.gpus
