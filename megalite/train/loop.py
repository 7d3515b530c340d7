"""The loop: step, log, evaluate, save, until the run is complete or told to stop."""

from dataclasses import dataclass
from functools import partial

from megalite.config.derive import Derived
from megalite.config.schema import Config
from megalite.data.batch import Dataset, MicroBatch, micro_batches
from megalite.data.splits import Datasets
from megalite.observe.record import EvaluationRecord, Sink
from megalite.train.build import Engine
from megalite.train.chores import Chore, falls_on
from megalite.train.keeper import Keeper
from megalite.train.meter import Meter
from megalite.train.resume import Progress
from megalite.train.step import StepResult, evaluate, train_step
from megalite.train.stop import Stop


@dataclass(frozen=True, kw_only=True)
class Session:
    """Everything that one run of the program works with."""

    config: Config
    derived: Derived
    engine: Engine
    datasets: Datasets
    logger: Sink
    meter: Meter
    stop: Stop
    chores: tuple[Chore, ...]
    """What is done after each iteration."""
    at_end: tuple[Chore, ...]
    """What is done when training ends, or is stopped."""
    keeper: Keeper


def train(session: Session, progress: Progress) -> None:
    """Train from `progress` to the end of the run, or until something asks to stop; evaluate and save in between."""
    settings, meter = session.config, session.meter
    last = progress.iteration + session.derived.batch_schedule.steps(
        session.derived.train_samples, consumed=progress.consumed_samples
    )
    if last == progress.iteration:
        session.logger.note(f"The run is complete after iteration {progress.iteration}: nothing is left to train.")
    meter.start(progress, last)
    while progress.iteration < last and not settings.train.skip_train:
        meter.step(_iteration(session, progress), progress)
        session.keeper.tell()
        for chore in session.chores:
            chore(progress)
        ending = progress.iteration == last
        if not ending and falls_on(settings.train.eval_interval, progress):
            meter.pause(lambda: _evaluate(session, progress, "validation"))
        stopping = _reason_to_stop(session, progress)
        if settings.checkpoint.save and (ending or stopping or falls_on(settings.checkpoint.save_interval, progress)):
            meter.pause(partial(_save, session, progress, is_last=ending or bool(stopping)))
        if stopping and not ending:
            session.keeper.wait()
            session.logger.note(f"{stopping}: stopped.")
            break
    else:
        _evaluate(session, progress, "validation")
        _evaluate(session, progress, "test")
    session.keeper.wait()
    session.engine.buffer.wait_params()
    for chore in session.at_end:
        chore(progress)


def _iteration(session: Session, progress: Progress) -> StepResult | None:
    """Train on the next global batch, or pass over it where that is asked for: None."""
    size = session.derived.batch_schedule(progress.consumed_samples)
    if progress.iteration + 1 in session.config.train.iterations_to_skip:
        progress.count(size, skipped=True)
        return None
    assert session.datasets.train is not None
    with session.engine.timers("batch-generator"):
        batch = _micro_batches(session, session.datasets.train, progress.consumed_samples, size)
    step, samples = progress.iteration + 1, progress.schedule_samples
    result = train_step(session.engine, batch, step=step, consumed_samples=samples)
    progress.count(size, skipped=result.skipped)
    return result


def _reason_to_stop(session: Session, progress: Progress) -> str:
    interval = session.config.train.exit_interval
    if falls_on(interval, progress):
        return f"--exit-interval {interval}"
    return session.stop.asked(session.engine.mesh)


def _micro_batches(session: Session, dataset: Dataset, first: int, size: int) -> list[MicroBatch]:
    """This rank's part of the global batch of `size` samples that starts at sample `first`."""
    dp, micro = session.engine.mesh.dp, session.config.train.micro_batch_size
    return micro_batches(
        dataset,
        first,
        micro_batch_size=micro,
        num_micro_batches=size // (micro * dp.size),
        dp_rank=dp.rank,
        dp_size=dp.size,
        device=session.engine.mesh.device,
        ends=session.datasets.ends,
        vocab_size=session.datasets.vocab_size,
    )


def _evaluate(session: Session, progress: Progress, split: str) -> None:
    """Report the loss of each data set of a split, unless the run is asked to stop meanwhile.

    The same batches come each time, so that two reports can be compared.
    """
    size, whole = session.derived.eval_batch_size, session.config.train.full_validation and split == "validation"
    for name, dataset in session.datasets.held_out(split).items():
        batches = len(dataset) // size if whole else session.config.train.eval_iters
        if whole and len(dataset) % size:
            session.logger.note(f"The last {len(dataset) % size} samples of {name} make no batch, and are left out.")
        loss, tokens = 0.0, 0
        for number in range(batches):
            if session.stop.asked(session.engine.mesh):
                session.logger.note(f"The {name} loss is left out, since the run is to stop.")
                return
            with session.engine.timers("evaluate"):
                batch_loss, batch_tokens = evaluate(
                    session.engine, _micro_batches(session, dataset, number * size, size)
                )
            loss, tokens = loss + batch_loss, tokens + batch_tokens
        if tokens:
            session.logger.evaluation(
                EvaluationRecord(iteration=progress.iteration, split=name, loss=loss / tokens, tokens=tokens)
            )


def _save(session: Session, progress: Progress, *, is_last: bool) -> None:
    with session.engine.timers("save-checkpoint"):
        session.keeper.save(progress, is_last=is_last)
