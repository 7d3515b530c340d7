"""--use-checkpoint-args: the settings of the model as the checkpoint has them, so that nobody repeats them."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from megalite.config.cli import Parsed
from megalite.config.model import Model
from megalite.config.options import options
from megalite.config.problem import Problem
from megalite.config.schema import Checkpoint
from megalite.config.show import to_text
from megalite.config.stored_model import model_differences, stored_model

Reader = Callable[[str | None, int | None, str | None], tuple[Path, dict[str, Any]]]
"""Of --load, --ckpt-step and --pretrained-checkpoint: what would be loaded, and the settings of its model."""
FLAG = "--use-checkpoint-args"


def begins_anew(kept: Checkpoint) -> bool:
    """Whether training starts where --load holds nothing yet: the first of several starts of one command line."""
    same = kept.save is not None and kept.load is not None and Path(kept.save).resolve() == Path(kept.load).resolve()
    return same and not kept.exit_on_missing_checkpoint


def with_model_of_checkpoint(parsed: Parsed, read: Reader) -> Parsed:
    """What the user asked for, and of the model what the checkpoint says wherever the user does not.

    A setting that was given comes before the checkpoint's, and that before the default. Where one that was given would
    make another model of the weights, this is a problem that names it.
    """
    kept = parsed.config.checkpoint
    if not kept.use_checkpoint_args or not (kept.load or kept.pretrained_checkpoint):
        return parsed
    try:
        source, facts = read(kept.load, kept.ckpt_step, kept.pretrained_checkpoint)
    except (ValueError, OSError) as error:
        return _without_checkpoint(parsed, str(error))
    names = {member.name for member in fields(Model)}
    taken = {
        name: value
        for name, value in facts.items()
        if name in names and name not in parsed.origins and value is not None
    }
    model = replace(parsed.config.model, **taken)
    parsed = replace(
        parsed,
        config=replace(parsed.config, model=model),
        origins={**parsed.origins, **dict.fromkeys(taken, str(source))},
    )
    contradiction = _contradiction(model, facts, parsed.origins, str(source))
    if contradiction:
        return _with_problem(parsed, contradiction)
    said = f"{FLAG}: {len(taken)} settings of the model are those of {source}."
    return replace(parsed, notices=[*parsed.notices, said])


def _without_checkpoint(parsed: Parsed, why: str) -> Parsed:
    """The model of the flags, where this may be the first of several starts; what is damaged is found at loading."""
    missing = [o.flag for o in options() if o.section == "model" and o.required and o.name not in parsed.origins]
    if not begins_anew(parsed.config.checkpoint):
        return _with_problem(parsed, f"{FLAG} finds no model. {why}")
    if missing:
        return _with_problem(parsed, f"{FLAG} finds no model. {why} For a first start give {', '.join(missing)}.")
    said = f"{FLAG}: the settings of the model are those of the flags. {why}"
    return replace(parsed, notices=[*parsed.notices, said])


def _with_problem(parsed: Parsed, text: str) -> Parsed:
    """What the model misses, or has wrong, is then said by this problem alone."""
    flags = [option.flag for option in options() if option.section == "model"]
    return replace(parsed, problems=[*parsed.problems, Problem(flags=(FLAG, *flags), text=text)])


def _contradiction(model: Model, facts: dict[str, Any], origins: dict[str, str], source: str) -> str:
    """What of the settings that were given does not fit the weights, in a sentence; nothing where all does."""
    size = facts["vocab_size"]
    try:
        differing = model_differences(model, stored_model(facts), vocab_sizes=(size, size))
    except (ZeroDivisionError, TypeError):  # a size of 0, say: validation names it
        return ""
    given = {name: pair for name, pair in differing.items() if origins.get(name, source) != source} or differing
    listed = "; ".join(f"{name} is {to_text(here)}, not {to_text(there)}" for name, (here, there) in given.items())
    return f"{FLAG}: the settings given contradict {source}: {listed}. Leave out what it says." if listed else ""
