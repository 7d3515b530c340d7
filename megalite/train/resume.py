"""How a run goes on from what it kept of itself."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from megalite.checkpoint.format import Index, read_index
from megalite.checkpoint.load import load
from megalite.checkpoint.on_all_ranks import on_all_ranks
from megalite.checkpoint.place import CheckpointMissing, find
from megalite.config.model import Model
from megalite.config.schema import Checkpoint, Config
from megalite.config.size import model_size
from megalite.mesh import Group
from megalite.optimizer import lr_state
from megalite.optimizer.optimizer import MAIN
from megalite.shard import Shard
from megalite.train.build import Engine

MAY_CHANGE = {
    *("seq_length", "make_vocab_size_divisible_by", "hidden_dropout", "attention_dropout", "fp32_residual_connection"),
    *("init_method_std", "embedding_init_method_std", "init_method_xavier_uniform", "apply_query_key_layer_scaling"),
    # What these say, the model's size says too, in one way instead of several.
    *("group_query_attention", "add_bias_linear", "add_qkv_bias"),
}
"""Settings of the model that may differ between a checkpoint and the run that loads it: its weights mean the same."""


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


def described_model(scalars: dict[str, Any]) -> Model:
    """The settings of the model that a checkpoint describes."""
    facts = scalars["model"]
    known = {member.name: facts[member.name] for member in fields(Model) if member.name in facts}
    return Model(**{"seq_length": facts["max_position_embeddings"], **known})


def load_checkpoint(engine: Engine, config: Config, vocab_size: int) -> Resumed:
    """Take up what --load names.

    Raises ValueError on every rank where the checkpoint does not fit the run.
    """
    settings, world = config.checkpoint, engine.mesh.world
    if settings.load is None:
        return Resumed(engine=engine)
    directory, missing = _find(Path(settings.load), settings.ckpt_step, world)
    if directory is None:
        if settings.exit_on_missing_checkpoint or settings.ckpt_step is not None:
            raise ValueError(missing)
        return Resumed(engine=engine, note=f"--load: {missing} Training starts anew.")
    index = read_index(directory)
    scalars = index.scalars
    _check_model(directory, scalars, config.model, vocab_size)
    goes_on = not settings.finetune and "consumed_train_samples" in scalars
    notes = []
    if goes_on and not config.train.skip_train:
        if config.train.train_iters is not None:
            _check_batches(engine, scalars, directory)
        engine, said = _with_schedules(engine, settings, scalars, directory)
        notes.append(said)

    unwanted = settings.finetune or settings.no_load_optim or config.train.skip_train
    weights_only = unwanted or "optimizer_step" not in scalars
    if weights_only:
        load(directory, list(engine.buffer.shards()), world)
        engine.optimizer.reload_main()
    else:
        load(directory, _all_shards(engine, index), world)
        engine.optimizer.resume(scalars["optimizer_step"])
        engine.loss_scale.load(scalars.get("loss_scale", {}))
    if not goes_on:
        return Resumed(engine=engine, note=f"loaded the weights of {directory}")
    consumed = scalars["consumed_train_samples"]
    left_out = ", without the state of the optimizer" if weights_only else ""
    notes.append(f"loaded {directory}{left_out}; {consumed:,} samples were consumed")
    progress = Progress(
        iteration=scalars["iteration"],
        consumed_samples=consumed,
        schedule_samples=scalars.get("schedule_samples", consumed),
        skipped=scalars.get("skipped_iterations", 0),
    )
    return Resumed(engine=engine, progress=progress, note="\n".join(filter(None, notes)))


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
    differences = lr_state.differences(scalars, engine.schedules)
    if not differences:
        return engine, ""
    listed = "\n".join(f"  {line}" for line in differences)
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


def _find(root: Path, step: int | None, world: Group) -> tuple[Path | None, str]:
    """The checkpoint that all ranks see, or why there is none. ValueError where they see different ones."""

    def look() -> tuple[str, str]:
        try:
            return str(find(root, step)), ""
        except CheckpointMissing as error:
            return "", str(error)

    seen = on_all_ranks(look, world, ValueError)
    if len({found for found, _ in seen}) > 1:
        views = "; ".join(
            f"rank {rank} sees {Path(name).name or 'no checkpoint'}" for rank, (name, _) in enumerate(seen)
        )
        raise ValueError(f"--load {root} must be a folder that all ranks share, but {views}.")
    found, missing = seen[world.rank]
    return Path(found) if found else None, missing


def _all_shards(engine: Engine, index: Index) -> list[Shard]:
    """What to fill, from the most exact source there is: the run and the checkpoint may differ in precision."""
    weights, states = list(engine.buffer.shards()), list(engine.optimizer.shards())
    main = {name.removeprefix(MAIN) for name in index.tensors if name.startswith(MAIN)}
    if engine.optimizer.has_copy:
        # A checkpoint without main params trained its params in full precision: they are the main params.
        states = [replace(s, name=s.name.removeprefix(MAIN)) if s.name not in index.tensors else s for s in states]
    elif main:
        weights = [replace(shard, name=MAIN + shard.name) for shard in weights]
    return weights + states


def _check_model(directory: Path, scalars: dict[str, Any], model: Model, vocab_size: int) -> None:
    """Weights with another rotary base, say, fit every shape and mean nothing."""
    theirs, ours = _function(described_model(scalars), scalars["vocab_size"]), _function(model, vocab_size)
    differences = [f"  {name}: {ours[name]} here, {theirs[name]} there" for name in ours if ours[name] != theirs[name]]
    if differences:
        listed = "\n".join(differences)
        raise ValueError(f"--load {directory} holds another model than the flags describe:\n{listed}")


def _function(model: Model, vocab_size: int) -> dict[str, Any]:
    """What weights mean: the settings that may not change from one run to the next."""
    resolved = {**asdict(model), **asdict(model_size(model, vocab_size=vocab_size))}
    free = (
        MAY_CHANGE if model.position_embedding_type == "learned_absolute" else {*MAY_CHANGE, "max_position_embeddings"}
    )
    return {name: value for name, value in resolved.items() if name not in free}
