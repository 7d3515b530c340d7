"""TensorBoard, under the tags that Megatron-LM uses, so that old and new runs share a chart."""

from pathlib import Path

from megalite.observe.record import EvaluationRecord, Sink, StepRecord, TrainRecord


def step_scalars(record: StepRecord) -> dict[str, float]:
    """One iteration under Megatron-LM's tags."""
    return {
        "lm loss": record.lm_loss,
        "grad-norm": record.grad_norm,
        "learning-rate": record.learning_rate,
        "batch-size": record.global_batch_size,
    }


def train_scalars(record: TrainRecord, *, times: bool) -> dict[str, float]:
    """What is known of the iterations between two progress lines, under Megatron-LM's tags; of times, where they are
    wanted, the longest over all ranks."""
    return {
        "iteration-time": record.iteration_time,
        "throughput": record.tflops_per_rank,
        "tokens-per-second": record.tokens_per_second,
        "mem-bytes": record.memory_bytes,
        "skipped": record.skipped,
        **{name.replace("_", "-"): value for name, value in record.statistics.items()},
        **({f"{name}-time": max(ranks) for name, ranks in record.times.items()} if times else {}),
    }


def evaluation_scalars(record: EvaluationRecord) -> dict[str, float]:
    """One evaluation under Megatron-LM's tags."""
    return {f"lm loss {record.split}": record.loss, f"lm loss {record.split} ppl": record.perplexity}


class TensorBoard(Sink):
    """Writes event files into `directory`, of single iterations every `interval`-th."""

    flag = "--tensorboard-dir"

    def __init__(self, directory: Path, *, times: bool = False, interval: int = 1) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError('--tensorboard-dir needs TensorBoard. Try: pip install "megalite[log]"') from error
        self.writer, self.times, self.interval = SummaryWriter(log_dir=str(directory)), times, interval

    def step(self, record: StepRecord) -> None:
        if record.iteration % self.interval == 0:
            self._write(step_scalars(record), record.iteration)

    def train(self, record: TrainRecord) -> None:
        self._write(train_scalars(record, times=self.times), record.iteration)

    def evaluation(self, record: EvaluationRecord) -> None:
        self._write(evaluation_scalars(record), record.iteration)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()

    def _write(self, scalars: dict[str, float], iteration: int) -> None:
        for tag, value in scalars.items():
            self.writer.add_scalar(tag, value, iteration)
