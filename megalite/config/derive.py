"""Every number that follows from the settings, worked out once, purely. The settings have passed validation."""

from dataclasses import dataclass

from megalite.config.schema import Config, Optimizer, Parallel


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What the settings leave unsaid. Schedules count samples: what a sample is does not change with the batch size."""

    data_parallel_size: int
    global_batch_size: int
    num_micro_batches: int
    """Micro-batches that each rank computes in one step."""
    bucket_size: int | None
    """Elements in one gradient bucket; None is one bucket for all."""
    train_iters: int
    train_samples: int
    lr_warmup_samples: float
    """A fraction of the decay need not be a whole number of samples."""
    lr_decay_samples: int
    lr_wsd_decay_samples: int
    start_weight_decay: float
    end_weight_decay: float
    eval_samples: int
    """Samples of one evaluation: always the same ones, so that two evaluations can be compared."""


def derive(config: Config, world_size: int) -> Derived:
    """Work out every derived number of a valid config on this many ranks."""
    parallel, train, optimizer = config.parallel, config.train, config.optimizer
    dp = data_parallel_size(parallel, world_size)
    batch = train.global_batch_size or train.micro_batch_size * dp
    iters = train.train_iters or (train.train_samples or 0) // batch
    decay = lr_decay_samples(config, batch)
    start_decay, end_decay = weight_decay_range(optimizer)
    return Derived(
        data_parallel_size=dp,
        global_batch_size=batch,
        num_micro_batches=batch // (train.micro_batch_size * dp),
        bucket_size=bucket_size(parallel, dp),
        train_iters=iters,
        train_samples=train.train_samples or iters * batch,
        lr_warmup_samples=lr_warmup_samples(optimizer, decay, batch),
        lr_decay_samples=decay,
        lr_wsd_decay_samples=optimizer.lr_wsd_decay_samples or (optimizer.lr_wsd_decay_iters or 0) * batch,
        start_weight_decay=start_decay,
        end_weight_decay=end_decay,
        eval_samples=train.eval_iters * batch,
    )


def data_parallel_size(parallel: Parallel, world_size: int) -> int:
    """Replicas of the model."""
    return world_size // parallel.tensor_model_parallel_size


def bucket_size(parallel: Parallel, dp: int) -> int | None:
    """Elements in one gradient bucket; buckets pay only where their reductions overlap the backward pass."""
    if parallel.ddp_bucket_size or not parallel.overlap_grad_reduce:
        return parallel.ddp_bucket_size
    return max(40_000_000, 1_000_000 * dp)


def padded_vocab_size(vocab_size: int, *, divisible_by: int, tensor_parallel_size: int) -> int:
    """The vocabulary rounded up to a multiple of `divisible_by` x `tensor_parallel_size`."""
    multiple = divisible_by * tensor_parallel_size
    return -(-vocab_size // multiple) * multiple


def lr_decay_samples(config: Config, batch: int) -> int:
    """Samples until the learning rate is at its lowest."""
    train, optimizer = config.train, config.optimizer
    if train.train_samples:
        return optimizer.lr_decay_samples or train.train_samples
    return (optimizer.lr_decay_iters or train.train_iters or 0) * batch


def lr_warmup_samples(optimizer: Optimizer, decay_samples: int, batch: int) -> float:
    """Samples until the learning rate is at its highest."""
    if optimizer.lr_warmup_fraction is not None:
        return optimizer.lr_warmup_fraction * decay_samples
    return optimizer.lr_warmup_samples or optimizer.lr_warmup_iters * batch


def weight_decay_range(optimizer: Optimizer) -> tuple[float, float]:
    """The weight decay at the start and at the end of the run."""
    constant = optimizer.weight_decay
    return _unless_none(optimizer.start_weight_decay, constant), _unless_none(optimizer.end_weight_decay, constant)


def _unless_none(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
