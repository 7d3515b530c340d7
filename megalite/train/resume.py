"""What a run keeps of itself, and how it goes on from there."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megalite.checkpoint.format import CheckpointMissing, find, read_index
from megalite.checkpoint.load import load
from megalite.checkpoint.save import save
from megalite.config.schema import Checkpoint, Config, Model
from megalite.config.show import to_toml
from megalite.config.size import model_size
from megalite.data.tokenizer_base import Tokenizer
from megalite.train.build import Run

NOT_THE_FUNCTION = (
    *("seq_length", "make_vocab_size_divisible_by", "hidden_dropout", "attention_dropout", "max_position_embeddings"),
    *("init_method_std", "embedding_init_method_std"),
)
"""Settings of the model that may change from one run to the next: its weights mean the same."""


@dataclass(kw_only=True)
class Progress:
    """How far a run is."""

    iteration: int = 0
    consumed_samples: int = 0


def model_facts(model: Model, vocab_size: int) -> dict[str, Any]:
    """What a checkpoint says of its model: the settings, nothing left to defaults, and the vocabulary's size."""
    size = asdict(model_size(model, vocab_size=vocab_size))
    resolved = ("ffn_hidden_size", "kv_channels", "max_position_embeddings")
    return {"model": {**asdict(model), **{name: size[name] for name in resolved}}, "vocab_size": vocab_size}


def save_checkpoint(run: Run, progress: Progress, config: Config, facts: dict[str, Any], tokenizer: Tokenizer) -> Path:
    """Write all that the run needs to go on, and all that others need to use its weights."""
    assert config.checkpoint.save is not None
    shards = [*run.buffer.shards(), *run.optimizer.shards()]
    scalars = {
        "iteration": progress.iteration,
        "consumed_train_samples": progress.consumed_samples,
        "optimizer_step": run.optimizer.steps,
        "parallel": run.mesh.grid.sizes,
        **facts,
        "tokenizer": tokenizer.describe(),
    }
    files = {f"tokenizer/{name}": path.read_bytes() for name, path in tokenizer.files().items()}
    files["config.toml"] = to_toml(config).encode()
    return save(Path(config.checkpoint.save), progress.iteration, shards, scalars, files, run.mesh.world)


def load_checkpoint(run: Run, settings: Checkpoint, facts: dict[str, Any]) -> tuple[Progress, str]:
    """Take up what --load names; where the run stands then, and a line about it.

    Raises ValueError where the checkpoint does not fit the run.
    """
    if settings.load is None:
        return Progress(), ""
    try:
        directory = find(Path(settings.load), settings.ckpt_step)
    except CheckpointMissing as missing:
        if settings.exit_on_missing_checkpoint or settings.ckpt_step is not None:
            raise
        return Progress(), f"--load: {missing} Training starts anew."
    scalars = read_index(directory).scalars
    _check_function(directory, _flat(scalars), _flat(facts))

    weights_only = settings.finetune or settings.no_load_optim or "optimizer_step" not in scalars
    optimizer = [] if weights_only else list(run.optimizer.shards())
    load(directory, [*run.buffer.shards(), *optimizer], run.mesh.world)
    if weights_only:
        run.optimizer.reload_main()
    else:
        run.optimizer.steps = scalars["optimizer_step"]
    if settings.finetune or "iteration" not in scalars:
        return Progress(), f"loaded the weights of {directory}"
    progress = Progress(iteration=scalars["iteration"], consumed_samples=scalars["consumed_train_samples"])
    left_out = ", without the state of the optimizer" if weights_only else ""
    return progress, f"loaded {directory}{left_out}; {progress.consumed_samples:,} samples were consumed"


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts["model"], "vocab_size": facts["vocab_size"]}


def _check_function(directory: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Weights with another rotary base, say, fit every shape and mean nothing."""
    shared = [name for name in ours if name in theirs and name not in NOT_THE_FUNCTION]
    differences = [
        f"  {name}: {ours[name]} here, {theirs[name]} there" for name in shared if ours[name] != theirs[name]
    ]
    if differences:
        listed = "\n".join(differences)
        raise ValueError(f"--load {directory} holds another model than the flags describe:\n{listed}")
