"""C39: a warm-up longer than the run, and the other ends of a schedule: refused in the flags' words, or sound rates."""

import math
import re
from itertools import pairwise, product

import pytest

from megalite.config.cli import parse
from megalite.config.derive import derive
from megalite.train.build import schedules_of
from megalite.validate import check

BASE = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 --lr 1e-3 "
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 100"
)
WARM_UPS = [
    *(f"--lr-warmup-iters {n}" for n in (0, 1, 4, 5, 6, 2000)),
    *(f"--lr-warmup-fraction {share}" for share in ("0", "0.01", "1.0")),
]
DECAYS = ["", *(f"--lr-decay-iters {n}" for n in (0, 1, 3, 100))]
STYLES = ["constant", "linear", "cosine", "inverse-square-root", "WSD --lr-wsd-decay-iters 1"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("length", [1, 5])
def test_a_schedule_is_sound_or_refused(length: int, decay: str, style: str) -> None:
    trained = 0
    for warm_up, min_lr in product(WARM_UPS, ("0", "1e-4", "1e-2")):
        words = f"{BASE} --train-iters {length} --lr-decay-style {style} {decay} {warm_up} --min-lr {min_lr}"
        config = parse(words.split()).config
        problems = [problem.text for problem in check(config, 1)]
        if problems:
            assert all("--" in text and re.search("Try|must be|Leave it out", text) for text in problems), problems
            continue
        trained += 1
        derived = derive(config, 1)
        rate = schedules_of(config, derived).learning_rate
        rates = [rate(step * derived.global_batch_size) for step in range(length + 3)]
        assert all(math.isfinite(value) and 0 <= value <= 1e-3 * (1 + 1e-12) for value in rates)
        rising = [rate(samples) for samples in range(int(derived.lr_warmup_samples) + 1)]
        assert len({round(after - before, 15) for before, after in pairwise(rising)}) <= 1
        # The last step of the run learns, even where what follows would be 0.
        assert length == 1 or rates[length - 1] > 0 or derived.lr_decay_samples < (length - 1) * 2
    assert trained or decay == "--lr-decay-iters 0"


def test_both_flags_are_named() -> None:
    (problem,) = check(parse(f"{BASE} --train-iters 5 --lr-warmup-iters 2000".split()).config, 1)
    assert problem.text.startswith("--lr-warmup-iters 2000 is not less than --train-iters 5")
