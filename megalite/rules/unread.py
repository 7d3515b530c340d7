"""Settings that only some other setting gives a meaning: where that is missing, the run says that they are not read."""

from collections.abc import Callable, Iterator

from megalite.config.options import Option, options
from megalite.config.schema import Config

Needs = tuple[str, str, Callable[[Config], object]]
"""Flags, what they need, and whether it is there."""

UNREAD: tuple[Needs, ...] = (
    ("--num-query-groups", "--group-query-attention", lambda c: c.model.group_query_attention),
    ("--rope-scaling-factor", "--use-rope-scaling", lambda c: c.model.use_rope_scaling),
    (
        "--lr-wsd-decay-iters --lr-wsd-decay-samples",
        "--lr-decay-style WSD",
        lambda c: c.optimizer.lr_decay_style == "WSD",
    ),
    (
        "--initial-loss-scale --min-loss-scale --loss-scale-window --hysteresis",
        "--fp16, or beside --loss-scale",
        lambda c: c.train.fp16 and c.train.loss_scale is None,
    ),
    ("--adam-beta1 --adam-beta2 --adam-eps", "--optimizer adam or muon", lambda c: c.optimizer.optimizer != "sgd"),
    ("--sgd-momentum", "--optimizer sgd", lambda c: c.optimizer.optimizer == "sgd"),
    (
        "--muon-momentum --muon-use-nesterov --muon-num-ns-steps --muon-scale-mode --muon-extra-scale-factor "
        "--muon-no-split-qkv",
        "--optimizer muon",
        lambda c: c.optimizer.optimizer == "muon",
    ),
    ("--manual-gc-interval", "--manual-gc", lambda c: c.train.manual_gc),
    ("--exit-signal", "--exit-signal-handler", lambda c: c.train.exit_signal_handler),
    (
        "--fim-rate --fim-spm-rate --fim-split-sample --fim-fragment-rate --fim-no-prefix --fim-prefix-token "
        "--fim-middle-token --fim-suffix-token --fim-pad-token",
        "--fim-data",
        lambda c: c.data.fim_data,
    ),
    (
        "--vocab-size",
        "--tokenizer-type NullTokenizer or TikTokenizer",
        lambda c: c.tokenizer.tokenizer_type in ("NullTokenizer", "TikTokenizer"),
    ),
    (
        "--save-interval --save-retain-last --save-retain-interval --async-save --log-progress",
        "--save",
        lambda c: c.checkpoint.save,
    ),
    ("--finetune --no-load-optim", "--load", lambda c: c.checkpoint.load),
    (
        "--verify-integrity",
        "--load or --pretrained-checkpoint",
        lambda c: c.checkpoint.load or c.checkpoint.pretrained_checkpoint,
    ),
    ("--wandb-exp-name --wandb-save-dir", "--wandb-project", lambda c: c.log.wandb_project),
)


def unread(config: Config) -> Iterator[str]:
    """A line for each need that is missing, with the flags that were given all the same."""
    by_flag = {option.flag: option for option in options()}
    for flags, need, is_there in UNREAD:
        given = [flag for flag in flags.split() if _is_given(config, by_flag[flag])]
        if given and not is_there(config):
            yield f"{' and '.join(given)} {'are' if given[1:] else 'is'} not read without {need}."


def _is_given(config: Config, option: Option) -> bool:
    return bool(getattr(getattr(config, option.section), option.name) != option.default)
