"""Rules about the course of the run: batches, length and schedules."""

from collections.abc import Iterator

from megalite.config import derive
from megalite.config.batch_schedule import from_steps
from megalite.rules.job import Job, Rules, near


def _schedule(job: Job) -> Iterator[str]:
    train = job.config.train
    ramp, goal = train.rampup_batch_size, train.global_batch_size
    if ramp and train.step_batch_size_schedule:
        yield "--rampup-batch-size and --step-batch-size-schedule both give the batch sizes. Give one."
    elif train.step_batch_size_schedule:
        if goal is not None:
            yield f"--global-batch-size {goal} and --step-batch-size-schedule both give the batch size. Give one."
        try:
            from_steps(train.step_batch_size_schedule, seq_length=job.config.model.seq_length)
        except ValueError as error:
            yield f"--step-batch-size-schedule {' '.join(train.step_batch_size_schedule)} {error}"
    elif ramp and (len(ramp) != 3 or min(ramp[:2]) < 1 or ramp[2] < 0):
        given = " ".join(map(str, ramp))
        yield f"--rampup-batch-size {given} is not START INCREMENT SAMPLES, the first two above 0. Try 16 16 100000."
    elif ramp and goal is None:
        yield "--rampup-batch-size needs --global-batch-size, the size to come to."
    elif ramp and goal is not None and (goal < ramp[0] or (goal - ramp[0]) % ramp[1]):
        yield (
            f"--rampup-batch-size {ramp[0]} {ramp[1]} ... does not come to --global-batch-size {goal} in whole "
            f"increments. Try --global-batch-size {near(max(goal - ramp[0], 0), ramp[1], offset=ramp[0])}."
        )


def _batch(job: Job) -> Iterator[str]:
    config, train = job.config, job.config.train
    dp = derive.data_parallel_size(config.parallel, job.world_size)
    if dp * config.parallel.tensor_model_parallel_size * config.parallel.pipeline_model_parallel_size != job.world_size:
        return
    if any(_schedule(job)):
        return
    multiple = train.micro_batch_size * dp
    stated = (
        ("--step-batch-size-schedule with the size", bool(train.step_batch_size_schedule)),
        ("--rampup-batch-size with the size", bool(train.rampup_batch_size)),
        ("--global-batch-size", True),
    )
    source = next(words for words, applies in stated if applies)
    for _, size in derive.batch_schedule(config, dp).sizes:
        if size % multiple:
            yield (
                f"{source} {size} is not divisible by --micro-batch-size {train.micro_batch_size} x data-parallel size "
                f"{dp}. Try {near(size, multiple)}."
            )
            return
    if train.eval_global_batch_size is not None and train.eval_global_batch_size % multiple:
        yield (
            f"--eval-global-batch-size {train.eval_global_batch_size} is not divisible by --micro-batch-size "
            f"{train.micro_batch_size} x data-parallel size {dp}. Try {near(train.eval_global_batch_size, multiple)}."
        )


def _length(job: Job) -> Iterator[str]:
    iters, samples = job.config.train.train_iters, job.config.train.train_samples
    if iters is None and samples is None:
        yield "The length of the run is missing. Give --train-iters or --train-samples."
    elif iters is not None and samples is not None:
        yield f"--train-iters {iters} and --train-samples {samples} both give the length of the run. Give one."


def _one_batch(job: Job) -> Iterator[str]:
    dp, samples = derive.data_parallel_size(job.config.parallel, job.world_size), job.config.train.train_samples
    if dp and samples is not None and not any(_schedule(job)):
        batch = derive.batch_schedule(job.config, dp)(0)
        if samples < batch:
            yield f"--train-samples {samples} is less than one global batch of {batch}. Try --train-samples {batch}."


def _whose_schedules(job: Job) -> Iterator[str]:
    kept = job.config.checkpoint
    if kept.use_checkpoint_opt_param_scheduler and kept.override_opt_param_scheduler:
        yield "--use-checkpoint-opt_param-scheduler and --override-opt_param-scheduler contradict each other. Give one."


def _precision(job: Job) -> Iterator[str]:
    train = job.config.train
    if train.bf16 and train.fp16:
        yield "--bf16 and --fp16 both give the precision. Give one."
    if job.config.parallel.grad_reduce_in_bf16 and not train.bf16:
        yield "--grad-reduce-in-bf16 needs --bf16: other gradients would lose what they are computed in. Give both."
    if train.fp16 and train.loss_scale is None and train.initial_loss_scale < train.min_loss_scale:
        yield (
            f"--initial-loss-scale {train.initial_loss_scale:g} is below --min-loss-scale {train.min_loss_scale:g}. "
            f"Try --min-loss-scale {train.initial_loss_scale:g}."
        )


def _skips(job: Job) -> Iterator[str]:
    skips = job.config.train.iterations_to_skip
    if skips and min(skips) < 1:
        yield f"--iterations-to-skip {' '.join(map(str, skips))}: iterations are counted from 1."


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


def _decoupled(job: Job) -> Iterator[str]:
    o = job.config.optimizer
    if o.decoupled_lr is None:
        if o.decoupled_min_lr is not None:
            yield f"--decoupled-min-lr {o.decoupled_min_lr} needs --decoupled-lr. Try --decoupled-lr {o.lr}."
        return
    flag, lowest = ("--min-lr", o.min_lr) if o.decoupled_min_lr is None else ("--decoupled-min-lr", o.decoupled_min_lr)
    if lowest > o.decoupled_lr:
        yield f"{flag} {lowest} is more than --decoupled-lr {o.decoupled_lr}. Try --decoupled-lr {lowest * 10:g}."
    if o.lr_warmup_init > o.decoupled_lr:
        yield (
            f"--lr-warmup-init {o.lr_warmup_init} is more than --decoupled-lr {o.decoupled_lr}. Try --lr-warmup-init 0."
        )


def _adam_kernel(job: Job) -> Iterator[str]:
    if job.config.optimizer.adam_kernel == "apex" and job.config.parallel.device == "cpu":
        yield "--adam-kernel apex needs a GPU, but --device is cpu. Try --adam-kernel torch."
    if job.config.optimizer.adam_kernel == "apex" and job.config.offload.share > 0:
        yield "--adam-kernel apex does not go with --optimizer-cpu-offload, which updates on a CPU. Leave one out."


def _muon(job: Job) -> Iterator[str]:
    if job.config.optimizer.optimizer == "muon" and job.config.offload.share > 0:
        yield (
            "--optimizer muon does not go with --optimizer-cpu-offload: momenta are made orthogonal on the device. "
            "Use --use-distributed-optimizer, which shards them."
        )
    if job.config.optimizer.optimizer == "muon" and job.config.log.log_num_zeros_in_grad:
        yield (
            "--log-num-zeros-in-grad does not go with --optimizer muon, which leaves no gradients to count in. "
            "Leave one out."
        )


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
            f"lowest. {f'Try --lr-warmup-{unit} {max(1, decay // 10)}' if decay > 1 else 'Leave it out'}."
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

_REPLICAS = "--micro-batch-size --tensor-model-parallel-size --pipeline-model-parallel-size"
_SIZES = "--global-batch-size --rampup-batch-size --step-batch-size-schedule --seq-length"

COURSE_RULES: Rules = (
    (_SIZES, _schedule),
    (f"{_SIZES} {_REPLICAS} --eval-global-batch-size", _batch),
    ("--train-iters --train-samples", _length),
    (f"{_SIZES} {_REPLICAS} --train-samples", _one_batch),
    ("--bf16 --fp16 --grad-reduce-in-bf16 --loss-scale --initial-loss-scale --min-loss-scale", _precision),
    ("--iterations-to-skip", _skips),
    ("--use-checkpoint-opt-param-scheduler --override-opt-param-scheduler", _whose_schedules),
    (_LR_UNITS + " --lr-wsd-decay-iters --lr-wsd-decay-samples", _units),
    ("--lr --min-lr --lr-warmup-init", _learning_rate),
    ("--lr --min-lr --lr-warmup-init --decoupled-lr --decoupled-min-lr", _decoupled),
    ("--adam-kernel --device --optimizer-cpu-offload --optimizer-offload-device", _adam_kernel),
    ("--optimizer --optimizer-cpu-offload --optimizer-offload-device --log-num-zeros-in-grad", _muon),
    (_LR_UNITS, _warm_up),
    (_LR_UNITS + " --lr-decay-style --lr-wsd-decay-iters --lr-wsd-decay-samples", _wsd),
    ("--weight-decay-incr-style --start-weight-decay --end-weight-decay", _weight_decay),
)
"""Each rule with the flags that it reads."""
