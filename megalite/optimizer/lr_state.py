"""The schedules as a checkpoint keeps them: told, read back, and compared by what they do."""

from dataclasses import asdict
from typing import Any

from megalite.optimizer.lr import LearningRate, WeightDecay

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
_DECAY_FLAGS = {
    "start": "--weight-decay at the start",
    "end": "--weight-decay at the end",
    "samples": "length of the weight decay's rise, in samples",
    "style": "--weight-decay-incr-style",
}


def describe(rate: LearningRate, decay: WeightDecay) -> dict[str, Any]:
    """The schedules as plain data."""
    return {"learning_rate": asdict(rate), "weight_decay": asdict(decay)}


def described(scalars: dict[str, Any]) -> tuple[LearningRate, WeightDecay]:
    """The schedules that a checkpoint describes."""
    return LearningRate(**scalars["learning_rate"]), WeightDecay(**scalars["weight_decay"])


def differences(scalars: dict[str, Any], rate: LearningRate, decay: WeightDecay) -> list[str]:
    """A line for each setting that makes the saved schedules others than these; none where a checkpoint says nothing.

    A setting that is not read, such as the end of a decay that is constant, does not count.
    """
    if "learning_rate" not in scalars:
        return []
    their_rate, their_decay = described(scalars)
    pairs = [
        *((flag, _rate_facts(their_rate).get(name), _rate_facts(rate).get(name)) for name, flag in _FLAGS.items()),
        *((f, _decay_facts(their_decay).get(name), _decay_facts(decay).get(name)) for name, f in _DECAY_FLAGS.items()),
    ]
    return [
        f"{flag}: {_said(ours)} here, {_said(theirs)} in the checkpoint"
        for flag, theirs, ours in pairs
        if theirs != ours
    ]


def _rate_facts(rate: LearningRate) -> dict[str, Any]:
    unread = set() if rate.style == "WSD" else {"wsd_style", "wsd_decay"}
    unread |= set() if rate.warmup else {"init_lr"}
    unread |= {"min_lr", "decay"} if rate.style == "constant" else set()
    return {name: value for name, value in asdict(rate).items() if name not in unread}


def _decay_facts(decay: WeightDecay) -> dict[str, Any]:
    unread = {"start", "samples"} if decay.style == "constant" else set()
    return {name: value for name, value in asdict(decay).items() if name not in unread}


def _said(value: Any) -> str:
    return "not read" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
