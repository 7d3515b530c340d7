"""TensorBoard, under the tags that Megatron-LM uses, so that old and new runs share a chart."""

from pathlib import Path

from megalite.observe.record import EvaluationRecord, Sink, TrainRecord


class TensorBoard(Sink):
    """Writes event files into `directory`."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError('--tensorboard-dir needs TensorBoard. Try: pip install "megalite[log]"') from error
        self.writer = SummaryWriter(log_dir=str(directory))

    def train(self, record: TrainRecord) -> None:
        scalars = {
            "lm loss": record.lm_loss,
            "grad-norm": record.grad_norm,
            "learning-rate": record.learning_rate,
            "iteration-time": record.iteration_time,
            "throughput": record.tflops_per_rank,
            "tokens-per-second": record.tokens_per_second,
            "mem-bytes": record.memory_bytes,
            "skipped": record.skipped,
        }
        for tag, value in scalars.items():
            self.writer.add_scalar(tag, value, record.iteration)

    def evaluation(self, record: EvaluationRecord) -> None:
        self.writer.add_scalar(f"lm loss {record.split}", record.loss, record.iteration)
        self.writer.add_scalar(f"lm loss {record.split} ppl", record.perplexity, record.iteration)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
