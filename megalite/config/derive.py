"""Every number that follows from the settings, worked out once, purely. The settings have passed validation."""

import math
from dataclasses import dataclass

from megalite.config.schema import Config, Model, Optimizer, Parallel
from megalite.config.split import DEFAULT_SPLIT, split_shares


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What the settings leave unsaid. Schedules count samples: what a sample is does not change with the batch size."""

    data_parallel_size: int
    global_batch_size: int
    num_micro_batches: int
    """Micro-batches that each rank computes in one step."""
    bucket_size: int | None
    """Elements in one gradient bucket; None is one bucket for all."""
    ffn_hidden_size: int
    kv_channels: int
    num_query_groups: int
    max_position_embeddings: int
    add_qkv_bias: bool
    embedding_init_method_std: float
    output_init_method_std: float
    """Of the two weights of a layer that write to the residual stream."""
    train_iters: int
    train_samples: int
    lr_warmup_samples: float
    """A fraction of the decay need not be a whole number of samples."""
    lr_decay_samples: int
    lr_wsd_decay_samples: int
    start_weight_decay: float
    end_weight_decay: float
    split: tuple[float, float, float]
    valid_samples: int
    """Samples that all evaluations during the run read."""
    test_samples: int


def derive(config: Config, world_size: int) -> Derived:
    """Work out every derived number of a valid config on this many ranks."""
    model, parallel, train, optimizer = config.model, config.parallel, config.train, config.optimizer
    dp = data_parallel_size(parallel, world_size)
    batch = train.global_batch_size or train.micro_batch_size * dp
    iters = train.train_iters or (train.train_samples or 0) // batch
    decay = lr_decay_samples(config, batch)
    evaluations = iters // train.eval_interval + 1 if train.eval_interval else 1
    start_decay, end_decay = weight_decay_range(optimizer)
    return Derived(
        data_parallel_size=dp,
        global_batch_size=batch,
        num_micro_batches=batch // (train.micro_batch_size * dp),
        bucket_size=bucket_size(parallel, dp),
        ffn_hidden_size=ffn_hidden_size(model),
        kv_channels=kv_channels(model),
        num_query_groups=query_groups(model),
        max_position_embeddings=model.max_position_embeddings or model.seq_length,
        add_qkv_bias=model.add_qkv_bias or model.add_bias_linear,
        embedding_init_method_std=_unless_none(model.embedding_init_method_std, model.init_method_std),
        output_init_method_std=model.init_method_std / math.sqrt(2 * model.num_layers),
        train_iters=iters,
        train_samples=train.train_samples or iters * batch,
        lr_warmup_samples=lr_warmup_samples(optimizer, decay, batch),
        lr_decay_samples=decay,
        lr_wsd_decay_samples=optimizer.lr_wsd_decay_samples or (optimizer.lr_wsd_decay_iters or 0) * batch,
        start_weight_decay=start_decay,
        end_weight_decay=end_decay,
        split=split_shares(DEFAULT_SPLIT if config.data.split is None else config.data.split),
        valid_samples=evaluations * train.eval_iters * batch,
        test_samples=train.eval_iters * batch,
    )


def data_parallel_size(parallel: Parallel, world_size: int) -> int:
    """Replicas of the model."""
    return world_size // parallel.tensor_model_parallel_size


def bucket_size(parallel: Parallel, dp: int) -> int | None:
    """Elements in one gradient bucket; buckets pay only where their reductions overlap the backward pass."""
    if parallel.ddp_bucket_size or not parallel.overlap_grad_reduce:
        return parallel.ddp_bucket_size
    return max(40_000_000, 1_000_000 * dp)


def ffn_hidden_size(model: Model) -> int:
    """Width inside the MLP; the gated one has three matrices instead of two, hence 8/3 instead of 4."""
    if model.ffn_hidden_size:
        return model.ffn_hidden_size
    return 8 * model.hidden_size // 3 // 64 * 64 if model.swiglu else 4 * model.hidden_size


def kv_channels(model: Model) -> int:
    """Width of one head."""
    return model.kv_channels or model.hidden_size // model.num_attention_heads


def query_groups(model: Model) -> int:
    """Number of key and value heads."""
    return model.num_query_groups if model.group_query_attention else model.num_attention_heads


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
