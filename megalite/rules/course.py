"""Rules about the course of the run: batches, length and schedules."""

from collections.abc import Iterator

from megalite.config import derive
from megalite.rules.job import Job, Rules, near


def _batch(job: Job) -> Iterator[str]:
    micro, batch = job.config.train.micro_batch_size, job.config.train.global_batch_size
    dp = derive.data_parallel_size(job.config.parallel, job.world_size)
    divides = job.world_size % job.config.parallel.tensor_model_parallel_size == 0
    if divides and batch is not None and batch % (micro * dp):
        yield (
            f"--global-batch-size {batch} is not divisible by --micro-batch-size {micro} x data-parallel size {dp}. "
            f"Try {near(batch, micro * dp)}."
        )


def _length(job: Job) -> Iterator[str]:
    iters, samples = job.config.train.train_iters, job.config.train.train_samples
    train, dp = job.config.train, derive.data_parallel_size(job.config.parallel, job.world_size)
    batch = train.global_batch_size or (train.micro_batch_size or 1) * max(dp, 1)
    if iters is None and samples is None:
        yield "The length of the run is missing. Give --train-iters or --train-samples."
    elif iters is not None and samples is not None:
        yield f"--train-iters {iters} and --train-samples {samples} both give the length of the run. Give one."
    elif samples is not None and samples < batch:
        yield f"--train-samples {samples} is less than one global batch of {batch}. Try --train-samples {batch}."


def _units(job: Job) -> Iterator[str]:
    optimizer = job.config.optimizer
    counted, other = ("samples", "iters") if job.config.train.train_samples is not None else ("iters", "samples")
    for stem in ("lr_decay", "lr_warmup", "lr_wsd_decay"):
        if value := getattr(optimizer, f"{stem}_{other}"):
            flag = f"--{stem}_".replace("_", "-")
            yield f"{flag}{other} {value} does not go with --train-{counted}. Use {flag}{counted}."
    warmup = optimizer.lr_warmup_iters or optimizer.lr_warmup_samples
    if optimizer.lr_warmup_fraction is not None and warmup:
        flag = "--lr-warmup-iters" if optimizer.lr_warmup_iters else "--lr-warmup-samples"
        fraction = optimizer.lr_warmup_fraction
        yield f"--lr-warmup-fraction {fraction} and {flag} {warmup} both give the warm-up. Give one."


def _learning_rate(job: Job) -> Iterator[str]:
    optimizer = job.config.optimizer
    if optimizer.min_lr > optimizer.lr:
        yield f"--min-lr {optimizer.min_lr} is more than --lr {optimizer.lr}. Try --min-lr {optimizer.lr / 10:g}."
    if optimizer.lr_warmup_init > optimizer.lr:
        yield f"--lr-warmup-init {optimizer.lr_warmup_init} is more than --lr {optimizer.lr}. Try --lr-warmup-init 0."


def _warm_up(job: Job) -> Iterator[str]:
    optimizer, train = job.config.optimizer, job.config.train
    unit = "samples" if train.train_samples is not None else "iters"
    warmup = getattr(optimizer, f"lr_warmup_{unit}")
    if optimizer.lr_warmup_fraction is not None or (train.train_iters is None and train.train_samples is None):
        return
    decay_flag = f"--lr-decay-{unit}" if getattr(optimizer, f"lr_decay_{unit}") else f"--train-{unit}"
    decay = getattr(optimizer, f"lr_decay_{unit}") or getattr(train, f"train_{unit}")
    if warmup >= decay:
        yield (
            f"--lr-warmup-{unit} {warmup} is not less than {decay_flag} {decay}, where the learning rate is to be "
            f"lowest. Try --lr-warmup-{unit} {decay // 10}."
        )


def _wsd(job: Job) -> Iterator[str]:
    optimizer, train = job.config.optimizer, job.config.train
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


def _weight_decay(job: Job) -> Iterator[str]:
    optimizer = job.config.optimizer
    start, end, style = optimizer.start_weight_decay, optimizer.end_weight_decay, optimizer.weight_decay_incr_style
    if style == "constant" and not (start is None and end is None):
        yield (
            "--start-weight-decay and --end-weight-decay do not go with --weight-decay-incr-style constant. "
            "Use --weight-decay, or --weight-decay-incr-style linear."
        )
    elif style != "constant" and (start is None or end is None):
        yield f"--weight-decay-incr-style {style} needs both --start-weight-decay and --end-weight-decay."


_LR_UNITS = (
    "--train-iters --train-samples --lr-decay-iters --lr-decay-samples --lr-warmup-iters --lr-warmup-samples "
    "--lr-warmup-fraction"
)

COURSE_RULES: Rules = (
    ("--global-batch-size --micro-batch-size --tensor-model-parallel-size", _batch),
    ("--train-iters --train-samples --global-batch-size", _length),
    (_LR_UNITS + " --lr-wsd-decay-iters --lr-wsd-decay-samples", _units),
    ("--lr --min-lr --lr-warmup-init", _learning_rate),
    (_LR_UNITS, _warm_up),
    (_LR_UNITS + " --lr-decay-style --lr-wsd-decay-iters --lr-wsd-decay-samples", _wsd),
    ("--weight-decay-incr-style --start-weight-decay --end-weight-decay", _weight_decay),
)
"""Each rule with the flags that it reads."""
