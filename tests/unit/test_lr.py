"""Learning rate and weight decay against the values that Megatron's scheduler produced."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from megalite.optimizer import lr_state
from megalite.optimizer.lr import LearningRate, Schedules, WeightDecay

VALUES = json.loads((Path(__file__).parents[1] / "data" / "megatron_values.json").read_text())
CURVES = VALUES["lr_schedules_max1e-3_min1e-4_warm20_decay100_wd.01-.1cos"]


def rate(style: str, **changes) -> LearningRate:
    style, _, wsd_style = style.partition(":")
    settings = {
        "max_lr": 1e-3,
        "min_lr": 1e-4,
        "init_lr": 0.0,
        "warmup": 20,
        "decay": 100,
        "style": style,
        "wsd_style": wsd_style or "exponential",
        "wsd_decay": 30,
    }
    return LearningRate(**settings | changes)


@pytest.mark.parametrize("style", CURVES)
def test_learning_rate_as_megatron(style):
    for step, expected, _ in CURVES[style]:
        assert rate(style)(step) == pytest.approx(expected, rel=1e-12, abs=1e-18), step


def test_weight_decay_as_megatron():
    decay = WeightDecay(start=0.01, end=0.1, samples=100, style="cosine")
    for step, _, expected in CURVES["linear"]:
        assert decay(step) == pytest.approx(expected, rel=1e-12), step


@pytest.mark.parametrize(("style", "middle"), [("constant", 0.1), ("linear", 0.055), ("cosine", 0.055)])
def test_weight_decay_styles(style, middle):
    decay = WeightDecay(start=0.1 if style == "constant" else 0.01, end=0.1, samples=100, style=style)
    assert decay(50) == pytest.approx(middle, rel=1e-12)
    assert decay(101) == 0.1


@pytest.mark.parametrize("style", CURVES)
@pytest.mark.parametrize(("warmup", "decay"), [(0, 1), (0, 100), (1, 2), (4, 5), (99, 100), (1.5, 100)])
def test_rates_are_sane(style, warmup, decay):
    """Short runs and long warm-ups: even steps up, never above the maximum, finite, and the minimum after the end."""
    schedule = rate(style, warmup=warmup, decay=decay, wsd_decay=min(30, decay - warmup))
    rates = [schedule(step) for step in range(decay + 50)]
    assert all(math.isfinite(x) and 0 <= x <= 1e-3 * (1 + 1e-12) for x in rates)
    rises = [b - a for a, b in pairwise(rates[: int(warmup) + 1])]
    assert rises == pytest.approx([1e-3 / warmup] * int(warmup) if warmup else [])
    if style != "constant":
        assert set(rates[decay + 1 :]) == {1e-4}


def test_warm_up_starts_where_it_is_told():
    assert rate("linear", init_lr=5e-4)(0) == 5e-4
    assert rate("linear", init_lr=5e-4)(10) == pytest.approx(7.5e-4)


@pytest.mark.parametrize(
    ("decoupled", "differences"),
    [
        (None, ["--decoupled-lr: not read here, 0.002 in the checkpoint"]),
        (rate("linear", max_lr=2e-3), []),
        (rate("linear", max_lr=3e-3), ["--decoupled-lr: 0.003 here, 0.002 in the checkpoint"]),
    ],
)
def test_a_decoupled_rate_is_kept_and_compared(decoupled, differences):
    decay = WeightDecay(start=0.1, end=0.1, samples=100, style="constant")
    saved = Schedules(learning_rate=rate("linear"), decoupled=rate("linear", max_lr=2e-3), weight_decay=decay)
    told = json.loads(json.dumps(lr_state.describe(saved)))
    assert lr_state.described(told) == saved
    found = lr_state.schedule_differences(
        told, Schedules(learning_rate=rate("linear"), decoupled=decoupled, weight_decay=decay)
    )
    assert found[:1] == differences
    assert saved.decoupled_learning_rate(20) == pytest.approx(2e-3)
