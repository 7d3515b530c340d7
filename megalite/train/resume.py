"""What a run keeps of itself, and how it goes on from there."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from megalite.checkpoint.format import CheckpointMissing, Index, find, read_index
from megalite.checkpoint.load import load
from megalite.checkpoint.save import save
from megalite.comm.collectives import all_gather_object
from megalite.config.schema import Config, Model
from megalite.config.show import to_toml
from megalite.config.size import model_size
from megalite.data.tokenizer_base import Tokenizer
from megalite.mesh import Group
from megalite.optimizer.optimizer import MAIN
from megalite.shard import Shard
from megalite.train.build import Engine


@dataclass(kw_only=True)
class Progress:
    """How far a run is."""

    iteration: int = 0
    consumed_samples: int = 0


def describe_model(model: Model, vocab_size: int) -> dict[str, Any]:
    """What a checkpoint says of its model: the settings, nothing left to defaults, and the vocabulary's size."""
    size = asdict(model_size(model, vocab_size=vocab_size))
    resolved = ("ffn_hidden_size", "kv_channels", "max_position_embeddings")
    return {"model": {**asdict(model), **{name: size[name] for name in resolved}}, "vocab_size": vocab_size}


def described_model(scalars: dict[str, Any]) -> Model:
    """The settings of the model that a checkpoint describes."""
    facts = scalars["model"]
    known = {field.name: facts[field.name] for field in fields(Model) if field.name in facts}
    return Model(**{"seq_length": facts["max_position_embeddings"], **known})


def save_checkpoint(engine: Engine, progress: Progress, config: Config, tokenizer: Tokenizer) -> Path:
    """Write all that the run needs to go on, and all that others need to use its weights."""
    assert config.checkpoint.save is not None
    shards = [*engine.buffer.shards(), *engine.optimizer.shards()]
    scalars = {
        "iteration": progress.iteration,
        "consumed_train_samples": progress.consumed_samples,
        "optimizer_step": engine.optimizer.steps,
        "global_batch_size": engine.global_batch_size,
        "parallel": engine.mesh.grid.sizes,
        "tokenizer": tokenizer.describe(),
        **describe_model(config.model, tokenizer.vocab_size),
    }
    files = {f"tokenizer/{name}": path.read_bytes() for name, path in tokenizer.files().items()}
    files["config.toml"] = to_toml(config).encode()
    return save(Path(config.checkpoint.save), progress.iteration, shards, scalars, files, engine.mesh.world)


def load_checkpoint(engine: Engine, config: Config, vocab_size: int) -> tuple[Progress, str]:
    """Take up what --load names; where the run stands then, and a line about it.

    Raises ValueError on every rank where the checkpoint does not fit the run.
    """
    settings, world = config.checkpoint, engine.mesh.world
    if settings.load is None:
        return Progress(), ""
    directory, missing = _find(Path(settings.load), settings.ckpt_step, world)
    if directory is None:
        if settings.exit_on_missing_checkpoint or settings.ckpt_step is not None:
            raise ValueError(missing)
        return Progress(), f"--load: {missing} Training starts anew."
    index = read_index(directory)
    scalars = index.scalars
    _check_model(directory, scalars, config.model, vocab_size)

    weights_only = settings.finetune or settings.no_load_optim or "optimizer_step" not in scalars
    if weights_only:
        load(directory, list(engine.buffer.shards()), world)
        engine.optimizer.reload_main()
    else:
        load(directory, _all_shards(engine, index), world)
        engine.optimizer.steps = scalars["optimizer_step"]
    if settings.finetune or "consumed_train_samples" not in scalars:
        return Progress(), f"loaded the weights of {directory}"
    if config.train.train_iters is not None and scalars["global_batch_size"] != engine.global_batch_size:
        raise ValueError(
            f"--load {directory} was trained with global batches of {scalars['global_batch_size']}, and here they have "
            f"{engine.global_batch_size}: iterations would not mean the same. Give --global-batch-size "
            f"{scalars['global_batch_size']}, or count the run in --train-samples."
        )
    progress = Progress(iteration=scalars["iteration"], consumed_samples=scalars["consumed_train_samples"])
    left_out = ", without the state of the optimizer" if weights_only else ""
    return progress, f"loaded {directory}{left_out}; {progress.consumed_samples:,} samples were consumed"


def _find(root: Path, step: int | None, world: Group) -> tuple[Path | None, str]:
    """The checkpoint that all ranks see, or why there is none. ValueError where they see different ones."""
    directory, missing = None, ""
    try:
        directory = find(root, step)
    except CheckpointMissing as error:
        missing = str(error)
    seen = all_gather_object(directory and directory.name, world)
    if len(set(seen)) > 1:
        views = "; ".join(f"rank {rank} sees {name or 'no checkpoint'}" for rank, name in enumerate(seen))
        raise ValueError(f"--load {root} must be a folder that all ranks share, but {views}.")
    return directory, missing


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
    size = asdict(model_size(model, vocab_size=vocab_size))
    rotary = model.position_embedding_type == "rope"
    may_change = {"seq_length"} | ({"max_position_embeddings"} if rotary else set())
    return {
        **{name: value for name, value in size.items() if name not in may_change},
        "normalization": model.normalization,
        "norm_epsilon": model.norm_epsilon,
        "rotary_base": model.rotary_base if rotary else None,
    }
