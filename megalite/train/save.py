"""What a run keeps of itself."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from megalite.checkpoint.save import save
from megalite.config.model import Model
from megalite.config.schema import Config
from megalite.config.show import to_toml
from megalite.config.size import model_size
from megalite.data.tokenizer_base import Tokenizer
from megalite.optimizer import lr_state
from megalite.train.build import Engine
from megalite.train.resume import Progress


def describe_model(model: Model, vocab_size: int) -> dict[str, Any]:
    """What a checkpoint says of its model: the settings, nothing left to defaults, and the vocabulary's size."""
    size = asdict(model_size(model, vocab_size=vocab_size))
    resolved = ("ffn_hidden_size", "kv_channels", "max_position_embeddings")
    return {"model": {**asdict(model), **{name: size[name] for name in resolved}}, "vocab_size": vocab_size}


def save_checkpoint(engine: Engine, progress: Progress, config: Config, tokenizer: Tokenizer) -> Path:
    """Write all that the run needs to go on, and all that others need to use its weights."""
    assert config.checkpoint.save is not None
    weights_only = config.checkpoint.no_save_optim
    shards = [*engine.buffer.shards(), *(() if weights_only else engine.optimizer.shards())]
    scalars = {
        "iteration": progress.iteration,
        "consumed_train_samples": progress.consumed_samples,
        "schedule_samples": progress.schedule_samples,
        "skipped_iterations": progress.skipped,
        **({} if weights_only else {"optimizer_step": engine.optimizer.steps, "loss_scale": engine.loss_scale.state()}),
        "global_batch_size": engine.batch_schedule(progress.consumed_samples),
        **lr_state.describe(engine.schedules),
        "parallel": engine.mesh.grid.sizes,
        "tokenizer": tokenizer.describe(),
        **describe_model(config.model, tokenizer.vocab_size),
    }
    files = {f"tokenizer/{name}": path.read_bytes() for name, path in tokenizer.files().items()}
    files["config.toml"] = to_toml(config).encode()
    return save(Path(config.checkpoint.save), progress.iteration, shards, scalars, files, engine.mesh.world)
