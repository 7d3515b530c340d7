"""What a run keeps of itself."""

from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from megalite.checkpoint.background import Background
from megalite.checkpoint.retention import Retention
from megalite.checkpoint.save import Saved, SaveFailed, save
from megalite.config.model import Model
from megalite.config.schema import Checkpoint, Config
from megalite.config.show import to_toml
from megalite.config.size import model_size
from megalite.data.tokenizer_base import Tokenizer
from megalite.mesh import on_host
from megalite.optimizer import lr_state
from megalite.shard import Shard
from megalite.train.build import Engine
from megalite.train.keeper import Write
from megalite.train.resume import Progress


def describe_model(model: Model, vocab_size: int) -> dict[str, Any]:
    """What a checkpoint says of its model: the settings, nothing left to defaults, and the vocabulary's size."""
    size = asdict(model_size(model, vocab_size=vocab_size))
    resolved = ("ffn_hidden_size", "kv_channels", "max_position_embeddings")
    return {"model": {**asdict(model), **{name: size[name] for name in resolved}}, "vocab_size": vocab_size}


@dataclass(frozen=True, kw_only=True)
class State:
    """All that a run needs to go on, and all that others need to use its weights; what `save` is given."""

    shards: list[Shard]
    scalars: dict[str, Any]
    files: dict[str, bytes]


def state_of(
    engine: Engine, progress: Progress, config: Config, tokenizer: Tokenizer, files: dict[str, bytes]
) -> State:
    """The state as it is now. The shards are the run's own memory."""
    weights_only = config.checkpoint.no_save_optim
    scalars = {
        "iteration": progress.iteration,
        "consumed_train_samples": progress.consumed_samples,
        "schedule_samples": progress.schedule_samples,
        "skipped_iterations": progress.skipped,
        "data_order": progress.order,
        **({} if weights_only else {"optimizer_step": engine.optimizer.steps, "loss_scale": engine.loss_scale.state()}),
        "global_batch_size": engine.batch_schedule(progress.consumed_samples),
        **lr_state.describe(engine.schedules),
        "parallel": engine.mesh.grid.sizes,
        "tokenizer": tokenizer.describe(),
        **describe_model(config.model, engine.vocab_size),
    }
    return State(
        shards=[*engine.buffer.shards(), *(() if weights_only else engine.optimizer.shards())],
        scalars=scalars,
        files=files,
    )


def retention(settings: Checkpoint) -> Retention | None:
    """Which checkpoints the settings keep; None: all."""
    last, interval = settings.save_retain_last, settings.save_retain_interval
    return None if last is None and interval is None else Retention(last=last or 1, interval=interval)


def writer(engine: Engine, config: Config, tokenizer: Tokenizer) -> Write:
    """How the settings ask to save: at once, or in the background. Every rank makes its own, at the same point.

    What comes along of the tokenizer is read now: weeks later its files may be elsewhere.
    """
    settings, mesh = config.checkpoint, engine.mesh
    root, kept = Path(settings.save or ""), retention(settings)
    files = {f"tokenizer/{name}": path.read_bytes() for name, path in tokenizer.files().items()}
    files["config.toml"] = to_toml(config).encode()

    def at_once(progress: Progress) -> "Future[Saved]":
        state = state_of(engine, progress, config, tokenizer, files)
        outcome: Future[Saved] = Future()
        try:
            saved = save(root, progress.iteration, state.shards, state.scalars, state.files, mesh.world, kept)
            outcome.set_result(saved)
        except SaveFailed as error:
            outcome.set_exception(error)
        return outcome

    if not settings.async_save:
        return at_once
    timeout = timedelta(minutes=config.parallel.distributed_timeout_minutes)
    background = Background(on_host(mesh.world, name="saving", timeout=timeout), mesh.device)

    def beside(progress: Progress) -> "Future[Saved]":
        state = state_of(engine, progress, config, tokenizer, files)
        return background.save(root, progress.iteration, state.shards, state.scalars, state.files, kept)

    return beside
