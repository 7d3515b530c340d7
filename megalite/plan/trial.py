"""Short trainings of a few layouts on the machine at hand, by turns: the proof of a plan."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from megalite.plan.launch import layout_flags
from megalite.plan.prediction import Prediction

TRAINER = Path(__file__).resolve().parents[2] / "pretrain_gpt.py"
WARM_UP = 2
"""Steps that are not counted."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one layout took, beside what was predicted."""

    predicted: Prediction
    seconds: tuple[float, ...]
    """The median of a step in each round."""

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the way from the fastest to the slowest round."""
        return (max(self.seconds) - min(self.seconds)) / 2


def probe(model_flags: Sequence[str], layouts: Sequence[Prediction], *, rounds: int, steps: int) -> list[Trial]:
    """Train each layout in every round for a few steps. RuntimeError, with what it said, where one does not run."""
    times: list[list[float]] = [[] for _ in layouts]
    for turn in range(rounds):
        for place in [*range(turn % len(layouts), len(layouts)), *range(turn % len(layouts))]:
            times[place].append(step_seconds(model_flags, layouts[place], steps=steps))
    return [Trial(predicted=found, seconds=tuple(own)) for found, own in zip(layouts, times, strict=True)]


def step_seconds(model_flags: Sequence[str], found: Prediction, *, steps: int) -> float:
    """The median time of a step of one run, in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(found.layout.gpus), str(TRAINER), *model_flags),
            *layout_flags(found.layout, param_bytes=found.job.practice.param_bytes),
            *("--lr", "1e-4", "--train-iters", str(WARM_UP + steps), "--mock-data", "--log-interval", "1"),
            *("--eval-iters", "0", "--log-jsonl", str(log)),
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"{found.layout} does not run here: {(run.stderr or run.stdout).strip()[-400:]}")
        records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    counted = [record["iteration_time"] for record in records if "iteration_time" in record][WARM_UP:]
    return median(counted)


def trial_lines(trials: Sequence[Trial]) -> list[str]:
    """Each layout as predicted and as timed, and whether the order holds."""
    width = max(len(str(trial.predicted.layout)) for trial in trials)
    lines = [f"{'layout':{width}}  predicted   measured  spread   error"]
    for trial in trials:
        ours = trial.predicted.time.total
        lines.append(
            f"{trial.predicted.layout!s:{width}} {1000 * ours:8.1f} ms {1000 * trial.median:7.1f} ms "
            f"{1000 * trial.spread:6.1f} {ours / trial.median - 1:+7.1%}"
        )
    wrong = [
        (a, b)
        for place, a in enumerate(trials)
        for b in trials[place + 1 :]
        if abs(a.median - b.median) > a.spread + b.spread
        and (a.predicted.time.total - b.predicted.time.total) * (a.median - b.median) < 0
    ]
    told = "the ranking holds beyond the spread" if not wrong else "the ranking does not hold"
    return [*lines, told, *(f"  {a.predicted.layout} and {b.predicted.layout} change places" for a, b in wrong)]
