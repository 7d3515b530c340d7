"""How a run goes on from what it kept of itself."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from megalite.checkpoint.source import Source
from megalite.config.model import Model
from megalite.config.schema import Checkpoint, Config
from megalite.config.stored_model import model_differences, stored_model
from megalite.data.order import order_differences
from megalite.optimizer import lr_state
from megalite.optimizer.optimizer import MAIN
from megalite.shard import Shard
from megalite.train.beginning import Beginning
from megalite.train.build import Engine


@dataclass(kw_only=True)
class Progress:
    """How far a run is."""

    iteration: int = 0
    consumed_samples: int = 0
    """Samples passed: the place in the data."""
    schedule_samples: int = 0
    """Samples that updates were made with: the place in the schedules, which stand still where an update is skipped."""
    skipped: int = 0
    """Iterations without an update."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """What the order of the samples follows from, of which `consumed_samples` are passed."""

    def count(self, samples: int, *, skipped: bool) -> None:
        """Take note of one iteration."""
        self.iteration += 1
        self.consumed_samples += samples
        self.schedule_samples += 0 if skipped else samples
        self.skipped += skipped


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where a run stands as it begins."""

    engine: Engine
    progress: Progress = field(default_factory=Progress)
    note: str = ""
    """A line for the log."""


def load_checkpoint(engine: Engine, config: Config, beginning: Beginning) -> Resumed:
    """Take up what the run begins from.

    Raises ValueError on every rank where it does not fit the run.
    """
    settings, world, source = config.checkpoint, engine.mesh.world, beginning.source
    if source is None:
        return Resumed(engine=engine, note=beginning.note)
    scalars, directory, weights_alone = source.scalars, source.directory, beginning.weights_alone
    _check_model(source, config.model, engine.vocab_size)
    goes_on = not weights_alone and "consumed_train_samples" in scalars
    notes = [beginning.note]
    if settings.verify_integrity:
        whole, unknown = "all files are as they were saved", "a folder of Hugging Face carries no checksums"
        notes.append(f"--verify-integrity: {whole if source.has_checksums else unknown}")
    if goes_on and not config.train.skip_train:
        if config.train.train_iters is not None:
            _check_batches(engine, scalars, directory)
        engine, said = _with_schedules(engine, settings, scalars, directory)
        notes.append(said)

    unwanted = weights_alone or settings.no_load_optim or config.train.skip_train
    without_state = unwanted or "optimizer_step" not in scalars
    source.load(_all_shards(engine, source.names, weights_alone=without_state), world)
    engine.optimizer.resume(0 if without_state else scalars["optimizer_step"])
    if not without_state:
        engine.loss_scale.load(scalars.get("loss_scale", {}))
    if not goes_on:
        return Resumed(engine=engine, note="\n".join([*filter(None, notes), f"loaded the weights of {directory}"]))
    consumed = scalars["consumed_train_samples"]
    left_out = ", without the state of the optimizer" if without_state else ""
    notes.append(f"loaded {directory}{left_out}; {consumed:,} samples were consumed")
    progress = Progress(
        iteration=scalars["iteration"],
        consumed_samples=consumed,
        schedule_samples=scalars.get("schedule_samples", consumed),
        skipped=scalars.get("skipped_iterations", 0),
        order=scalars.get("data_order", {}),
    )
    return Resumed(engine=engine, progress=progress, note="\n".join(filter(None, notes)))


def on_data(resumed: Resumed, order: Mapping[str, Any], *, allowed: bool) -> Resumed:
    """Go on with training data of this order (see `data.order`).

    Raises ValueError where it is not that of the samples already passed, unless this is allowed and then said.
    """
    progress = replace(resumed.progress, order=order)
    differing = order_differences(order, resumed.progress.order) if progress.consumed_samples else []
    note = resumed.note
    if differing:
        listed = "\n".join(f"  {line}" for line in differing)
        passed = f"{progress.consumed_samples:,} samples were consumed"
        if not allowed:
            raise ValueError(
                f"--load: {passed} in another order than that of the data here, so that samples would come again or "
                f"never:\n{listed}\nRepeat the settings of the first run; or go on at this place of the new order by "
                "--allow-other-data, or start at its beginning, with these weights, by --finetune."
            )
        note += f"\n--allow-other-data: {passed} in another order, and the next are those at this place here:\n{listed}"
    return replace(resumed, progress=progress, note=note)


def _check_batches(engine: Engine, scalars: dict[str, Any], directory: Path) -> None:
    """Iterations count samples only as long as the batch sizes before the checkpoint are those of its run."""
    iteration, consumed = scalars["iteration"], scalars["consumed_train_samples"]
    ours = engine.batch_schedule.samples(iteration)
    if ours != consumed:
        raise ValueError(
            f"--load {directory} consumed {consumed} samples in {iteration} iterations, and here they would be {ours}: "
            "iterations would not mean the same. Repeat the batch sizes of the first run, which stood at "
            f"--global-batch-size {scalars['global_batch_size']}, or count the run in --train-samples."
        )


def _with_schedules(
    engine: Engine, settings: Checkpoint, scalars: dict[str, Any], directory: Path
) -> tuple[Engine, str]:
    """The engine with the schedules to go on with, and a line about them. ValueError where that is not said."""
    differing = lr_state.schedule_differences(scalars, engine.schedules)
    if not differing:
        return engine, ""
    listed = "\n".join(f"  {line}" for line in differing)
    if settings.override_opt_param_scheduler:
        return engine, f"--override-opt_param-scheduler: the schedules of the flags replace those saved:\n{listed}"
    if settings.use_checkpoint_opt_param_scheduler:
        said = f"--use-checkpoint-opt_param-scheduler: the schedules saved replace those of the flags:\n{listed}"
        return replace(engine, schedules=lr_state.described(scalars)), said
    raise ValueError(
        f"--load {directory} was trained with other schedules than the flags give:\n{listed}\n"
        "Go on with those of the checkpoint by --use-checkpoint-opt_param-scheduler, or with those of the flags by "
        "--override-opt_param-scheduler."
    )


def _all_shards(engine: Engine, names: Collection[str], *, weights_alone: bool) -> list[Shard]:
    """What to fill, from the most exact source there is: the run and the checkpoint may differ in precision.

    `weights_alone`: main params are the optimizer's, whose files may be gone; the weights themselves are not rounded.
    """
    weights, kept = list(engine.buffer.shards()), list(engine.optimizer.shards())
    if weights_alone:
        names = [name for name in names if not name.startswith(MAIN)]
        kept = [shard for shard in kept if shard.name.startswith(MAIN)]
    main = {name.removeprefix(MAIN) for name in names if name.startswith(MAIN)}
    if engine.optimizer.has_copy:
        # A checkpoint without main params trained its params in full precision: they are the main params.
        kept = [replace(s, name=s.name.removeprefix(MAIN)) if s.name not in names else s for s in kept]
    elif main:
        weights = [replace(shard, name=MAIN + shard.name) for shard in weights]
    return weights + kept


def _check_model(source: Source, model: Model, vocab_size: int) -> None:
    """Weights with another rotary base, say, fit every shape and mean nothing."""
    there = stored_model(source.scalars["model"])
    differing = model_differences(model, there, vocab_sizes=(vocab_size, source.scalars["vocab_size"]))
    if differing:
        listed = "\n".join(f"  {name}: {here} here, {there} there" for name, (here, there) in differing.items())
        rows = "The vocabulary is the tokenizer's; more rows are kept where the folder holds this tokenizer, too. "
        raise ValueError(
            f"{source.directory} holds another model than the flags describe:\n{listed}\n"
            f"{rows if 'vocab_size' in differing else ''}"
            "--use-checkpoint-args takes the settings of the model that are not given from there."
        )
