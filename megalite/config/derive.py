"""Every number that follows from the settings, worked out once, purely. The settings have passed validation."""

from dataclasses import dataclass

from megalite.config.batch_schedule import BatchSchedule, constant, from_steps, ramp_up, rounded_down
from megalite.config.parallel import Parallel
from megalite.config.pipeline import Pipeline, pipeline
from megalite.config.schema import Config, Optimizer


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What the settings leave unsaid. Schedules count samples: what a sample is does not change with the batch size."""

    data_parallel_size: int
    optimizer_shards: int
    """Parts into which main parameters and optimizer states are cut, one for each data parallel rank of an instance."""
    gradient_shards: int
    """The same of main gradients."""
    pipeline: Pipeline
    batch_schedule: BatchSchedule
    global_batch_size: int
    """What the schedule comes to."""
    num_micro_batches: int
    """Micro-batches that each rank computes in one step of `global_batch_size`."""
    eval_batch_size: int
    train_iters: int
    train_samples: int
    lr_warmup_samples: float
    """A fraction of the decay need not be a whole number of samples."""
    lr_decay_samples: int
    lr_wsd_decay_samples: int
    start_weight_decay: float
    end_weight_decay: float
    data_samples: tuple[int, int | None, int]
    """Samples of training, of one validation and of one test; None: all that there are once."""


def derive(config: Config, world_size: int) -> Derived:
    """Work out every derived number of a valid config on this many ranks."""
    parallel, train, optimizer = config.parallel, config.train, config.optimizer
    dp = data_parallel_size(parallel, world_size)
    shards = dp // parallel.num_distributed_optimizer_instances
    schedule = batch_schedule(config, dp)
    eval_batch = train.eval_global_batch_size or schedule.last
    decay = lr_decay_samples(config, schedule)
    start_decay, end_decay = weight_decay_range(optimizer)
    train_samples = train.train_samples or schedule.samples(train.train_iters or 0)
    eval_samples = train.eval_iters * eval_batch
    return Derived(
        data_parallel_size=dp,
        optimizer_shards=shards if parallel.use_distributed_optimizer else 1,
        gradient_shards=shards if parallel.shards_gradients else 1,
        pipeline=pipeline(config.model, parallel),
        batch_schedule=schedule,
        global_batch_size=schedule.last,
        num_micro_batches=schedule.last // (train.micro_batch_size * dp),
        eval_batch_size=eval_batch,
        train_iters=train.train_iters or schedule.steps(train.train_samples or 0),
        train_samples=train_samples,
        lr_warmup_samples=lr_warmup_samples(optimizer, decay, schedule),
        lr_decay_samples=decay,
        lr_wsd_decay_samples=lr_wsd_decay_samples(config, decay, schedule),
        start_weight_decay=start_decay,
        end_weight_decay=end_decay,
        data_samples=(
            0 if train.skip_train else train_samples,
            None if train.full_validation else eval_samples,
            eval_samples,
        ),
    )


def batch_schedule(config: Config, dp: int) -> BatchSchedule:
    """The global batch sizes of the run. ValueError where --step-batch-size-schedule cannot be read."""
    train = config.train
    if train.step_batch_size_schedule:
        schedule = from_steps(train.step_batch_size_schedule, seq_length=config.model.seq_length)
    elif train.rampup_batch_size and train.global_batch_size:
        start, increment, samples = train.rampup_batch_size
        schedule = ramp_up(start, increment, samples, goal=train.global_batch_size)
    else:
        schedule = constant(train.global_batch_size or train.micro_batch_size * dp)
    return rounded_down(schedule, train.micro_batch_size * dp) if train.decrease_batch_size_if_needed else schedule


def data_parallel_size(parallel: Parallel, world_size: int) -> int:
    """Replicas of the model."""
    return world_size // (parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size)


def bucket_size(parallel: Parallel, dp: int, parameters: int) -> int | None:
    """Elements in one gradient bucket of a rank that has so many parameters in its stages; None is one for each stage.

    Buckets pay only where they travel while something is computed, or where their memory is used again.
    """
    if parallel.ddp_num_buckets:
        return -(-parameters // parallel.ddp_num_buckets)
    if parallel.overlap_grad_reduce or parallel.overlap_param_gather or parallel.shards_gradients:
        return parallel.ddp_bucket_size or max(40_000_000, 1_000_000 * dp)
    return parallel.ddp_bucket_size


def padded_vocab_size(vocab_size: int, *, divisible_by: int, tensor_parallel_size: int) -> int:
    """The vocabulary rounded up to a multiple of `divisible_by` x `tensor_parallel_size`."""
    multiple = divisible_by * tensor_parallel_size
    return -(-vocab_size // multiple) * multiple


def lr_decay_samples(config: Config, schedule: BatchSchedule) -> int:
    """Samples until the learning rate is at its lowest."""
    train, optimizer = config.train, config.optimizer
    if train.train_samples:
        return optimizer.lr_decay_samples or train.train_samples
    return schedule.samples(optimizer.lr_decay_iters or train.train_iters or 0)


def lr_warmup_samples(optimizer: Optimizer, decay_samples: int, schedule: BatchSchedule) -> float:
    """Samples until the learning rate is at its highest."""
    if optimizer.lr_warmup_fraction is not None:
        return optimizer.lr_warmup_fraction * decay_samples
    return optimizer.lr_warmup_samples or schedule.samples(optimizer.lr_warmup_iters)


def lr_wsd_decay_samples(config: Config, decay_samples: int, schedule: BatchSchedule) -> int:
    """Samples of the last part of the decay of a WSD schedule."""
    optimizer = config.optimizer
    if optimizer.lr_wsd_decay_iters is None:
        return optimizer.lr_wsd_decay_samples or 0
    until = optimizer.lr_decay_iters or config.train.train_iters or 0
    return decay_samples - schedule.samples(max(until - optimizer.lr_wsd_decay_iters, 0))


def weight_decay_range(optimizer: Optimizer) -> tuple[float, float]:
    """The weight decay at the start and at the end of the run."""
    constant = optimizer.weight_decay
    return _unless_none(optimizer.start_weight_decay, constant), _unless_none(optimizer.end_weight_decay, constant)


def _unless_none(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
