"""What is given and not read is said, and only then."""

import pytest

from megalite.rules.unread import UNREAD, unread
from tests.unit.test_validate import parsed


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--num-query-groups 2", "--num-query-groups is not read without --group-query-attention."),
        (
            "--hysteresis 3 --min-loss-scale 4",
            "--min-loss-scale and --hysteresis are not read without --fp16, or beside",
        ),
        ("--fp16 --loss-scale 8 --hysteresis 3", "--hysteresis is not read without --fp16, or beside --loss-scale."),
        ("--lr-wsd-decay-iters 2", "--lr-wsd-decay-iters is not read without --lr-decay-style WSD."),
        ("--save-interval 2 --async-save", "--save-interval and --async-save are not read without --save."),
        ("--log-progress", "--log-progress is not read without --save."),
        ("--finetune", "--finetune is not read without --load."),
        ("--rope-scaling-factor 2", "--rope-scaling-factor is not read without --use-rope-scaling."),
        ("--muon-momentum 0.5", "--muon-momentum is not read without --optimizer muon."),
        ("--optimizer sgd --adam-eps 1e-6", "--adam-eps is not read without --optimizer adam or muon."),
        ("--sgd-momentum 0.5", "--sgd-momentum is not read without --optimizer sgd."),
        ("--manual-gc-interval 3", "--manual-gc-interval is not read without --manual-gc."),
        ("--fim-rate 0.1 --fim-pad-token x", "--fim-rate and --fim-pad-token are not read without --fim-data."),
        ("--exit-signal SIGINT", "--exit-signal is not read without --exit-signal-handler."),
        ("--wandb-exp-name x", "--wandb-exp-name is not read without --wandb-project."),
        ("--adam-beta1 0.8 --optimizer sgd", "--adam-beta1 is not read without --optimizer adam or muon."),
        ("--verify-integrity", "--verify-integrity is not read without --load or --pretrained-checkpoint."),
    ],
)
def test_what_is_not_read_is_said(flags: str, text: str) -> None:
    (said,) = unread(parsed(flags).config)
    assert said.startswith(text)


def test_a_need_that_is_there_is_silent() -> None:
    config = parsed("--lr-decay-style WSD --lr-wsd-decay-iters 2 --manual-gc --manual-gc-interval 3 --fim-data").config
    assert not list(unread(config))


def test_no_flag_needs_two_things() -> None:
    flags = [flag for row in UNREAD for flag in row[0].split()]
    assert len(flags) == len(set(flags))
