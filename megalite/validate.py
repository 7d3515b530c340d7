"""Every rule that a run's settings must keep, checked at once and before anything is started."""

import os.path
from collections.abc import Callable, Collection, Iterator
from functools import partial

from megalite.config import derive
from megalite.config.options import Option, options
from megalite.config.problem import Problem
from megalite.config.schema import Config
from megalite.config.split import split_shares

Exists = Callable[[str], bool]
Rule = Callable[[Config, int], Iterator[str]]


def check(
    config: Config, world_size: int, *, faulty: Collection[str] = (), exists: Exists = os.path.exists
) -> list[Problem]:
    """Every problem of these settings on this many ranks, in the order of the schema.

    A rule is skipped where a flag that it reads is already at fault (`faulty`: found so while parsing), since its
    verdict would only confuse. `exists` says whether a path is there.
    """
    bad = set(faulty)
    problems = []
    for option in options():
        text = (
            "" if option.flag in bad else _value_problem(option, getattr(getattr(config, option.section), option.name))
        )
        if text:
            problems.append(Problem(flags=(option.flag,), text=text))
    bad |= {flag for problem in problems for flag in problem.flags}
    for flags, rule in (
        *RULES,
        ("--data-path", partial(_data_files, exists)),
        (_TOKENIZER, partial(_tokenizer, exists)),
    ):
        if bad.isdisjoint(flags.split()):
            problems += [Problem(flags=tuple(flags.split()), text=text) for text in rule(config, world_size)]
    return problems


def notices(config: Config) -> list[str]:
    """What is allowed but has no effect, or is decided for the user: said once."""
    model, optimizer = config.model, config.optimizer
    said = {
        "--sequence-parallel has no effect with --tensor-model-parallel-size 1.": (
            config.parallel.sequence_parallel and config.parallel.tensor_model_parallel_size == 1
        ),
        f"--num-query-groups {model.num_query_groups} is not read without --group-query-attention.": (
            model.num_query_groups != 1 and not model.group_query_attention
        ),
        "--lr-wsd-decay-iters and --lr-wsd-decay-samples are not read without --lr-decay-style WSD.": (
            bool(optimizer.lr_wsd_decay_iters or optimizer.lr_wsd_decay_samples) and optimizer.lr_decay_style != "WSD"
        ),
        f"--split is not given: {derive.DEFAULT_SPLIT} is used.": bool(config.data.data_path)
        and config.data.split is None,
        "--vocab-size is read by NullTokenizer only.": (
            config.tokenizer.vocab_size is not None and config.tokenizer.tokenizer_type != "NullTokenizer"
        ),
        "--save-interval has no effect without --save.": bool(
            config.checkpoint.save_interval and not config.checkpoint.save
        ),
        "--finetune and --no-load-optim have no effect without --load.": (
            (config.checkpoint.finetune or config.checkpoint.no_load_optim) and not config.checkpoint.load
        ),
    }
    return [text for text, applies in said.items() if applies]


def _value_problem(option: Option, value: object) -> str:
    if value is None:
        return f"{option.flag} is missing." if option.required else ""
    within = {"at least": float.__ge__, "above": float.__gt__, "at most": float.__le__, "below": float.__lt__}
    for words, bound in option.bounds:
        if isinstance(value, int | float) and not within[words](float(value), float(bound)):
            limits = " and ".join(f"{words} {bound:g}" for words, bound in option.bounds)
            return f"{option.flag} {value} is out of range: it must be {limits}."
    return ""


def _tensor_parallel(config: Config, world_size: int) -> Iterator[str]:
    tp = config.parallel.tensor_model_parallel_size
    if world_size % tp:
        yield (
            f"--tensor-model-parallel-size {tp} does not divide the {world_size} rank{'s' * (world_size > 1)} of this job. "
            f"Try {_divisors(world_size)}."
        )


def _heads(config: Config, world_size: int) -> Iterator[str]:
    model, tp = config.model, config.parallel.tensor_model_parallel_size
    if model.num_attention_heads % tp:
        yield (
            f"--num-attention-heads {model.num_attention_heads} is not divisible by --tensor-model-parallel-size {tp}. "
            f"Try {_near(model.num_attention_heads, tp)} heads."
        )


def _query_groups(config: Config, world_size: int) -> Iterator[str]:
    heads, groups = config.model.num_attention_heads, config.model.num_query_groups
    if config.model.group_query_attention and heads % groups:
        yield f"--num-attention-heads {heads} is not divisible by --num-query-groups {groups}. Try {_divisors(heads)}."


def _query_groups_over_ranks(config: Config, world_size: int) -> Iterator[str]:
    groups, tp = config.model.num_query_groups, config.parallel.tensor_model_parallel_size
    if not config.model.group_query_attention or groups % tp == 0:
        return
    if tp > groups:
        yield (
            f"--tensor-model-parallel-size {tp} is more than --num-query-groups {groups}: each rank needs a whole "
            f"query group, since keys and values are neither split nor copied. Try {_divisors(groups)}."
        )
    else:
        yield (
            f"--num-query-groups {groups} is not divisible by --tensor-model-parallel-size {tp}. "
            f"Try {_near(groups, tp)} groups."
        )


def _head_width(config: Config, world_size: int) -> Iterator[str]:
    model = config.model
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.kv_channels is None and hidden % heads:
        yield (
            f"--hidden-size {hidden} is not divisible by --num-attention-heads {heads}. Try {_near(hidden, heads)}, "
            "or give --kv-channels."
        )
    elif model.position_embedding_type == "rope" and derive.kv_channels(model) % 2:
        yield (
            f"--position-embedding-type rope turns pairs of channels, but a head has {derive.kv_channels(model)}. "
            f"Try --kv-channels {derive.kv_channels(model) + 1}."
        )


def _mlp_width(config: Config, world_size: int) -> Iterator[str]:
    width, tp = derive.ffn_hidden_size(config.model), config.parallel.tensor_model_parallel_size
    if width == 0:
        yield f"--hidden-size {config.model.hidden_size} with --swiglu leaves no MLP width. Give --ffn-hidden-size."
    elif width % tp:
        unset = "" if config.model.ffn_hidden_size else " (worked out from --hidden-size)"
        yield (
            f"--ffn-hidden-size {width}{unset} is not divisible by --tensor-model-parallel-size {tp}. "
            f"Try {_near(width, tp)}."
        )


def _positions(config: Config, world_size: int) -> Iterator[str]:
    length, most = config.model.seq_length, config.model.max_position_embeddings
    if most is not None and length > most:
        yield f"--seq-length {length} is more than --max-position-embeddings {most}. Try --max-position-embeddings {length}."


def _sequence_parallel(config: Config, world_size: int) -> Iterator[str]:
    length, tp = config.model.seq_length, config.parallel.tensor_model_parallel_size
    if config.parallel.sequence_parallel and length % tp:
        yield (
            f"--seq-length {length} is not divisible by --tensor-model-parallel-size {tp} under --sequence-parallel. "
            f"Try {_near(length, tp)}."
        )


def _backend(config: Config, world_size: int) -> Iterator[str]:
    if config.parallel.device == "cpu" and config.parallel.distributed_backend == "nccl":
        yield "--distributed-backend nccl needs a GPU, but --device is cpu. Try --distributed-backend gloo."


def _batch(config: Config, world_size: int) -> Iterator[str]:
    micro, batch = config.train.micro_batch_size, config.train.global_batch_size
    dp = derive.data_parallel_size(config.parallel, world_size)
    if dp and batch is not None and batch % (micro * dp):
        yield (
            f"--global-batch-size {batch} is not divisible by --micro-batch-size {micro} x data-parallel size {dp}. "
            f"Try {_near(batch, micro * dp)}."
        )


def _length(config: Config, world_size: int) -> Iterator[str]:
    iters, samples = config.train.train_iters, config.train.train_samples
    batch = config.train.global_batch_size or 1
    if iters is None and samples is None:
        yield "The length of the run is missing. Give --train-iters or --train-samples."
    elif iters is not None and samples is not None:
        yield f"--train-iters {iters} and --train-samples {samples} both give the length of the run. Give one."
    elif samples is not None and samples < batch:
        yield f"--train-samples {samples} is less than one --global-batch-size {batch}. Try {batch}."


def _units(config: Config, world_size: int) -> Iterator[str]:
    optimizer = config.optimizer
    counted, other = ("samples", "iters") if config.train.train_samples is not None else ("iters", "samples")
    for stem in ("lr_decay", "lr_warmup", "lr_wsd_decay"):
        if value := getattr(optimizer, f"{stem}_{other}"):
            flag = f"--{stem}_".replace("_", "-")
            yield f"{flag}{other} {value} does not go with --train-{counted}. Use {flag}{counted}."
    warmup = optimizer.lr_warmup_iters or optimizer.lr_warmup_samples
    if optimizer.lr_warmup_fraction is not None and warmup:
        flag = "--lr-warmup-iters" if optimizer.lr_warmup_iters else "--lr-warmup-samples"
        yield f"--lr-warmup-fraction {optimizer.lr_warmup_fraction} and {flag} {warmup} both give the warm-up. Give one."


def _learning_rate(config: Config, world_size: int) -> Iterator[str]:
    optimizer = config.optimizer
    if optimizer.min_lr > optimizer.lr:
        yield f"--min-lr {optimizer.min_lr} is more than --lr {optimizer.lr}. Try --min-lr {optimizer.lr / 10:g}."
    if optimizer.lr_warmup_init > optimizer.lr:
        yield f"--lr-warmup-init {optimizer.lr_warmup_init} is more than --lr {optimizer.lr}. Try --lr-warmup-init 0."


def _warm_up(config: Config, world_size: int) -> Iterator[str]:
    optimizer, train = config.optimizer, config.train
    unit = "samples" if train.train_samples is not None else "iters"
    warmup = getattr(optimizer, f"lr_warmup_{unit}")
    if optimizer.lr_warmup_fraction is not None or (train.train_iters is None and train.train_samples is None):
        return
    decay_flag = f"--lr-decay-{unit}" if getattr(optimizer, f"lr_decay_{unit}") else f"--train-{unit}"
    decay = getattr(optimizer, f"lr_decay_{unit}") or getattr(train, f"train_{unit}")
    if warmup >= decay:
        yield (
            f"--lr-warmup-{unit} {warmup} is not less than {decay_flag} {decay}, where the learning rate must be at its "
            f"lowest. Try --lr-warmup-{unit} {decay // 10}."
        )


def _wsd(config: Config, world_size: int) -> Iterator[str]:
    optimizer, train = config.optimizer, config.train
    unit = "samples" if train.train_samples is not None else "iters"
    fall = getattr(optimizer, f"lr_wsd_decay_{unit}")
    decay = getattr(optimizer, f"lr_decay_{unit}") or getattr(train, f"train_{unit}")
    if optimizer.lr_decay_style != "WSD" or decay is None:
        return
    fraction = optimizer.lr_warmup_fraction
    warmup = getattr(optimizer, f"lr_warmup_{unit}") if fraction is None else fraction * decay
    if fall is None:
        yield f"--lr-decay-style WSD needs --lr-wsd-decay-{unit}. Try {max(1, decay // 10)}."
    elif warmup < decay < warmup + fall:
        yield (
            f"--lr-wsd-decay-{unit} {fall} does not fit between the warm-up of {warmup:g} and the end of the decay at "
            f"{decay}. Try {max(1, int(decay - warmup))}."
        )


def _weight_decay(config: Config, world_size: int) -> Iterator[str]:
    optimizer = config.optimizer
    start, end, style = optimizer.start_weight_decay, optimizer.end_weight_decay, optimizer.weight_decay_incr_style
    if style == "constant" and not (start is None and end is None):
        yield (
            "--start-weight-decay and --end-weight-decay do not go with --weight-decay-incr-style constant. "
            "Use --weight-decay, or --weight-decay-incr-style linear."
        )
    elif style != "constant" and (start is None or end is None):
        yield f"--weight-decay-incr-style {style} needs both --start-weight-decay and --end-weight-decay."


def _data(config: Config, world_size: int) -> Iterator[str]:
    data = config.data
    if data.mock_data == bool(data.data_path):
        yield ("--data-path and --mock-data exclude each other. " if data.mock_data else "There are no data. ") + (
            "Give --data-path PREFIX, or --mock-data to train on made-up tokens."
        )


def _split(config: Config, world_size: int) -> Iterator[str]:
    try:
        split_shares(derive.DEFAULT_SPLIT if config.data.split is None else config.data.split)
    except ValueError as error:
        yield str(error)


def _checkpoint(config: Config, world_size: int) -> Iterator[str]:
    kept = config.checkpoint
    if kept.save and kept.save_interval is None:
        yield f"--save {kept.save} needs --save-interval. Try --save-interval {config.train.train_iters or 1000}."
    if not kept.load and kept.ckpt_step is not None:
        yield f"--ckpt-step {kept.ckpt_step} needs --load."
    if not kept.load and kept.exit_on_missing_checkpoint:
        yield "--exit-on-missing-checkpoint needs --load."


def _data_files(exists: Exists, config: Config, world_size: int) -> Iterator[str]:
    for prefix in config.data.data_path:
        missing = [prefix + ending for ending in (".bin", ".idx") if not exists(prefix + ending)]
        if missing and not _is_number(prefix):
            hint = " Leave the ending out." if prefix.endswith((".bin", ".idx")) else ""
            yield f"--data-path {prefix}: there is no {' and no '.join(missing)}.{hint}"


def _tokenizer(exists: Exists, config: Config, world_size: int) -> Iterator[str]:
    tokenizer, kind = config.tokenizer, config.tokenizer.tokenizer_type
    needs = {
        "GPT2BPETokenizer": ("vocab_file", "merge_file"),
        "ByteLevelTokenizer": (),
        "NullTokenizer": ("vocab_size",),
    }.get(kind, ("tokenizer_model",))
    values = {"--" + name.replace("_", "-"): getattr(tokenizer, name) for name in needs}
    missing = [flag for flag, value in values.items() if value in (None, "")]
    if missing:
        yield f"--tokenizer-type {kind} needs {' and '.join(missing)}." + (
            " Without a tokenizer's files, use --tokenizer-type NullTokenizer --vocab-size 1024."
            * config.data.mock_data
        )
    for flag, value in values.items():
        # Hugging Face knows models by name, too.
        if isinstance(value, str) and value and kind != "HuggingFaceTokenizer" and not exists(value):
            yield f"{flag} {value} does not exist."


def _near(value: int, multiple: int) -> str:
    """The multiples around a value."""
    below = value // multiple * multiple
    return f"{below} or {below + multiple}" if below else str(multiple)


def _divisors(number: int) -> str:
    found = [str(d) for d in range(1, number + 1) if number % d == 0][:8]
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_TOKENIZER = "--tokenizer-type --tokenizer-model --vocab-file --merge-file --vocab-size"
_LR_UNITS = (
    "--train-iters --train-samples --lr-decay-iters --lr-decay-samples --lr-warmup-iters --lr-warmup-samples "
    "--lr-warmup-fraction"
)

RULES: tuple[tuple[str, Rule], ...] = (
    ("--tensor-model-parallel-size", _tensor_parallel),
    ("--num-attention-heads --tensor-model-parallel-size", _heads),
    ("--num-query-groups --num-attention-heads", _query_groups),
    ("--num-query-groups --tensor-model-parallel-size", _query_groups_over_ranks),
    ("--hidden-size --num-attention-heads --kv-channels --position-embedding-type", _head_width),
    ("--ffn-hidden-size --hidden-size --tensor-model-parallel-size", _mlp_width),
    ("--seq-length --max-position-embeddings", _positions),
    ("--seq-length --tensor-model-parallel-size --sequence-parallel", _sequence_parallel),
    ("--distributed-backend --device", _backend),
    ("--global-batch-size --micro-batch-size --tensor-model-parallel-size", _batch),
    ("--train-iters --train-samples --global-batch-size", _length),
    (_LR_UNITS + " --lr-wsd-decay-iters --lr-wsd-decay-samples", _units),
    ("--lr --min-lr --lr-warmup-init", _learning_rate),
    (_LR_UNITS, _warm_up),
    (_LR_UNITS + " --lr-decay-style --lr-wsd-decay-iters --lr-wsd-decay-samples", _wsd),
    ("--weight-decay-incr-style --start-weight-decay --end-weight-decay", _weight_decay),
    ("--data-path --mock-data", _data),
    ("--split", _split),
    ("--save --save-interval --load --ckpt-step --exit-on-missing-checkpoint", _checkpoint),
)
"""Each rule with the flags that it reads."""
