"""TensorBoard, under the tags that Megatron-LM uses, so that old and new runs share a chart."""

from pathlib import Path

from megalite.observe.record import EvaluationRecord, Sink, TrainRecord


def train_scalars(record: TrainRecord, *, times: bool) -> dict[str, float]:
    """One logged iteration under Megatron-LM's tags; of times, where they are wanted, the longest over all ranks."""
    return {
        "lm loss": record.lm_loss,
        "grad-norm": record.grad_norm,
        "learning-rate": record.learning_rate,
        "batch-size": record.global_batch_size,
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
    """Writes event files into `directory`."""

    def __init__(self, directory: Path, *, times: bool = False) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError('--tensorboard-dir needs TensorBoard. Try: pip install "megalite[log]"') from error
        self.writer, self.times = SummaryWriter(log_dir=str(directory)), times

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
