"""What a run begins from: what --load and --pretrained-checkpoint name, opened before the model is made."""

from dataclasses import dataclass
from pathlib import Path

from megalite.checkpoint.on_all_ranks import on_all_ranks
from megalite.checkpoint.place import CheckpointMissing
from megalite.checkpoint.source import Source, find_source, open_source
from megalite.config.from_checkpoint import begins_anew
from megalite.config.schema import Checkpoint
from megalite.data.tokenizer import rebuild_tokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.mesh import Group


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Where a run takes up."""

    source: Source | None = None
    """Nothing where training starts anew."""
    weights_alone: bool = False
    vocab_size: int
    """Rows of the vocabulary that the model must have."""
    note: str = ""
    """A line for the log."""


def find_beginning(settings: Checkpoint, tokenizer: Tokenizer, world: Group) -> Beginning:
    """What is to be loaded, if anything.

    Raises ValueError on every rank where nothing is there and the run was not told to start anew: by --save in the same
    place, where the first of several starts finds nothing, or by --pretrained-checkpoint; and where it is damaged.
    """
    directory, weights_alone, note = _choose(settings, world)
    if directory is None:
        return Beginning(vocab_size=tokenizer.vocab_size, note=note)
    opened: list[Source] = []  # kept here: ranks tell each other whether it went well, not what they have read
    on_all_ranks(lambda: opened.append(open_source(directory, verify=settings.verify_integrity)), world, ValueError)
    source = opened[0]
    rows, ids = _rows(source, tokenizer), tokenizer.vocab_size
    surplus = (
        f"the vocabulary of {directory} has {rows:,} rows; the tokenizer uses {ids:,} of them" if rows > ids else ""
    )
    return Beginning(source=source, weights_alone=weights_alone, vocab_size=rows, note=surplus)


def _rows(source: Source, tokenizer: Tokenizer) -> int:
    """The rows that the source states, if they are more than its own tokenizer uses, and ours has as many ids as that.

    Hugging Face's vocabularies may end with rows that no text comes to (Qwen 2: 151,936 for 151,665 ids). They take
    part in its softmax, so they are kept. Under any other tokenizer the weights would mean something else.
    """
    stated, described = source.scalars["vocab_size"], source.scalars.get("tokenizer")
    if stated > tokenizer.vocab_size and described is not None:
        its_own = rebuild_tokenizer(described, source.tokenizer)
        if its_own.vocab_size == tokenizer.vocab_size:
            return stated
    return tokenizer.vocab_size


def _choose(settings: Checkpoint, world: Group) -> tuple[Path | None, bool, str]:
    """The folder to load, if there is one; whether its weights alone; and a line where training starts anew."""
    note = ""
    if settings.load is not None:
        directory, missing = _find("--load", settings.load, settings.ckpt_step, world)
        if directory is not None:
            return directory, settings.finetune, ""
        if settings.pretrained_checkpoint is None and not begins_anew(settings):
            hint = " To start anew, leave --load out, or give --save the same folder."
            raise ValueError(f"--load: {missing}{hint if not settings.exit_on_missing_checkpoint else ''}")
        note = f"--load: {missing} Training starts anew."
    if settings.pretrained_checkpoint is not None:
        directory, missing = _find("--pretrained-checkpoint", settings.pretrained_checkpoint, None, world)
        if directory is None:
            raise ValueError(f"--pretrained-checkpoint: {missing}")
        return directory, True, ""
    return None, False, note


def _find(flag: str, root: str, step: int | None, world: Group) -> tuple[Path | None, str]:
    """The folder that all ranks see, or why there is none. ValueError where they see different ones."""

    def look() -> tuple[str, str]:
        try:
            return str(find_source(Path(root), step)), ""
        except CheckpointMissing as error:
            return "", str(error)

    seen = on_all_ranks(look, world, ValueError)
    if len({found for found, _ in seen}) > 1:
        views = "; ".join(
            f"rank {rank} sees {Path(name).name or 'no checkpoint'}" for rank, (name, _) in enumerate(seen)
        )
        raise ValueError(f"{flag} {root} must be a folder that all ranks share, but {views}.")
    found, missing = seen[world.rank]
    return Path(found) if found else None, missing
