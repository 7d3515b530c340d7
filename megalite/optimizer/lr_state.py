"""The schedules as a checkpoint keeps them: told, read back, and compared by what they do."""

from dataclasses import asdict
from typing import Any

from megalite.optimizer.lr import LearningRate, Schedules, WeightDecay

_FLAGS = {
    "max_lr": "--lr",
    "min_lr": "--min-lr",
    "init_lr": "--lr-warmup-init",
    "warmup": "warm-up, in samples",
    "decay": "--lr-decay-iters or -samples, in samples",
    "style": "--lr-decay-style",
    "wsd_style": "--lr-wsd-decay-style",
    "wsd_decay": "--lr-wsd-decay-iters or -samples, in samples",
}
_DECOUPLED_FLAGS = {"max_lr": "--decoupled-lr", "min_lr": "--decoupled-min-lr"}
_DECAY_FLAGS = {
    "start": "--weight-decay at the start",
    "end": "--weight-decay at the end",
    "samples": "length of the weight decay's rise, in samples",
    "style": "--weight-decay-incr-style",
}


def describe(schedules: Schedules) -> dict[str, Any]:
    """The schedules as plain data."""
    return {
        "learning_rate": asdict(schedules.learning_rate),
        "decoupled_learning_rate": schedules.decoupled and asdict(schedules.decoupled),
        "weight_decay": asdict(schedules.weight_decay),
    }


def described(scalars: dict[str, Any]) -> Schedules:
    """The schedules that a checkpoint describes."""
    decoupled = scalars.get("decoupled_learning_rate")
    return Schedules(
        learning_rate=LearningRate(**scalars["learning_rate"]),
        decoupled=decoupled and LearningRate(**decoupled),
        weight_decay=WeightDecay(**scalars["weight_decay"]),
    )


def schedule_differences(scalars: dict[str, Any], ours: Schedules) -> list[str]:
    """A line for each setting that makes the saved schedules others than ours; none where a checkpoint says nothing.

    A setting that is not read, such as the end of a decay that is constant, does not count.
    """
    if "learning_rate" not in scalars:
        return []
    theirs = described(scalars)
    compared = [
        (_FLAGS, _rate_facts(theirs.learning_rate), _rate_facts(ours.learning_rate)),
        (_DECOUPLED_FLAGS, _rate_facts(theirs.decoupled), _rate_facts(ours.decoupled)),
        (_DECAY_FLAGS, _decay_facts(theirs.weight_decay), _decay_facts(ours.weight_decay)),
    ]
    return [
        f"{flag}: {_said(our.get(name))} here, {_said(their.get(name))} in the checkpoint"
        for flags, their, our in compared
        for name, flag in flags.items()
        if their.get(name) != our.get(name)
    ]


def _rate_facts(rate: LearningRate | None) -> dict[str, Any]:
    if rate is None:
        return {}
    unread = set() if rate.style == "WSD" else {"wsd_style", "wsd_decay"}
    unread |= set() if rate.warmup else {"init_lr"}
    unread |= {"min_lr", "decay"} if rate.style == "constant" else set()
    return {name: value for name, value in asdict(rate).items() if name not in unread}


def _decay_facts(decay: WeightDecay) -> dict[str, Any]:
    unread = {"start", "samples"} if decay.style == "constant" else set()
    return {name: value for name, value in asdict(decay).items() if name not in unread}


def _said(value: Any) -> str:
    return "not read" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
