"""Weights & Biases, under the same tags as TensorBoard."""

from pathlib import Path
from typing import Any

from megalite.observe.record import EvaluationRecord, Sink, StepRecord, TrainRecord
from megalite.observe.tensorboard import evaluation_scalars, step_scalars, train_scalars


class WeightsAndBiases(Sink):
    """Reports to a project; files of the run lie in `directory`, its settings are shown beside it."""

    flag = "--wandb-project"

    def __init__(
        self,
        *,
        project: str,
        name: str | None,
        directory: Path,
        settings: dict[str, Any],
        times: bool,
        interval: int,
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ValueError("--wandb-project needs Weights & Biases. Try: pip install wandb") from error
        directory.mkdir(parents=True, exist_ok=True)
        self.times, self.interval = times, interval
        self.run = wandb.init(project=project, name=name, dir=str(directory), config=settings)

    def step(self, record: StepRecord) -> None:
        if record.iteration % self.interval == 0:
            self.run.log(step_scalars(record), step=record.iteration)

    def train(self, record: TrainRecord) -> None:
        self.run.log(train_scalars(record, times=self.times), step=record.iteration)

    def evaluation(self, record: EvaluationRecord) -> None:
        self.run.log(evaluation_scalars(record), step=record.iteration)

    def close(self) -> None:
        self.run.finish()
