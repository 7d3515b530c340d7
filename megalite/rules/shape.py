"""Rules about the network and how it is cut: sizes that must divide each other."""

from collections.abc import Iterator

from megalite.config import size
from megalite.config.windows import layers_without_rotary, windows
from megalite.rules.job import Job, Rules, divisors, near


def _heads(job: Job) -> Iterator[str]:
    model, tp = job.config.model, job.config.parallel.tensor_model_parallel_size
    if model.num_attention_heads % tp:
        yield (
            f"--num-attention-heads {model.num_attention_heads} is not divisible by --tensor-model-parallel-size {tp}. "
            f"Try {near(model.num_attention_heads, tp)} heads."
        )


def _query_groups(job: Job) -> Iterator[str]:
    heads, groups = job.config.model.num_attention_heads, job.config.model.num_query_groups
    if job.config.model.group_query_attention and heads % groups:
        yield f"--num-attention-heads {heads} is not divisible by --num-query-groups {groups}. Try {divisors(heads)}."


def _query_groups_over_ranks(job: Job) -> Iterator[str]:
    groups, tp = job.config.model.num_query_groups, job.config.parallel.tensor_model_parallel_size
    if not job.config.model.group_query_attention or groups % tp == 0:
        return
    if tp > groups:
        yield (
            f"--tensor-model-parallel-size {tp} is more than --num-query-groups {groups}: each rank needs a whole "
            f"query group, since keys and values are neither split nor copied. Try {divisors(groups)}."
        )
    else:
        yield (
            f"--num-query-groups {groups} is not divisible by --tensor-model-parallel-size {tp}. "
            f"Try {near(groups, tp)} groups."
        )


def _head_width(job: Job) -> Iterator[str]:
    model = job.config.model
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.kv_channels is None and hidden % heads:
        yield (
            f"--hidden-size {hidden} is not divisible by --num-attention-heads {heads}. Try {near(hidden, heads)}, "
            "or give --kv-channels."
        )
    elif size.rotary_dim(model) % 2 or (model.position_embedding_type == "rope" and size.rotary_dim(model) == 0):
        yield (
            f"--position-embedding-type rope turns pairs of channels, but of a head of {size.kv_channels(model)} "
            f"channels --rotary-percent {model.rotary_percent} is {size.rotary_dim(model)}. Try --kv-channels "
            f"{size.kv_channels(model) // 2 * 2 + 2} --rotary-percent 1."
        )


def _mlp_width(job: Job) -> Iterator[str]:
    width, tp = size.ffn_hidden_size(job.config.model), job.config.parallel.tensor_model_parallel_size
    if width == 0:
        yield f"--hidden-size {job.config.model.hidden_size} with --swiglu leaves no MLP width. Give --ffn-hidden-size."
    elif width % tp:
        unset = "" if job.config.model.ffn_hidden_size else " (worked out from --hidden-size)"
        yield (
            f"--ffn-hidden-size {width}{unset} is not divisible by --tensor-model-parallel-size {tp}. "
            f"Try {near(width, tp)}."
        )


def _positions(job: Job) -> Iterator[str]:
    length, most = job.config.model.seq_length, job.config.model.max_position_embeddings
    if most is not None and length > most:
        yield f"--seq-length {length} is more than --max-position-embeddings {most}. Try --seq-length {most}."


def _one_activation(job: Job) -> Iterator[str]:
    chosen = [name for name in ("swiglu", "quick_geglu", "squared_relu") if getattr(job.config.model, name)]
    if len(chosen) > 1:
        yield f"{' and '.join('--' + name.replace('_', '-') for name in chosen)} exclude each other. Give one."


def _rotary_only(job: Job) -> Iterator[str]:
    model = job.config.model
    given = {
        "--rotary-percent": model.rotary_percent != 1,
        "--rotary-interleaved": model.rotary_interleaved,
        "--rotary-seq-len-interpolation-factor": model.rotary_seq_len_interpolation_factor is not None,
        "--no-rope-freq": model.no_rope_freq is not None,
        "--use-rope-scaling": model.use_rope_scaling,
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    if flags and model.position_embedding_type != "rope":
        yield (
            f"{' and '.join(flags)} needs rotary positions, but --position-embedding-type is "
            f"{model.position_embedding_type}. Try --position-embedding-type rope."
        )
    else:
        try:
            layers_without_rotary(model)
        except ValueError as error:
            yield str(error)


def _windows(job: Job) -> Iterator[str]:
    model = job.config.model
    if model.window_attn_skip_freq is not None and model.window_size is None:
        yield f"--window-attn-skip-freq {model.window_attn_skip_freq} needs --window-size. Try --window-size 128,0."
    else:
        try:
            windows(model)
        except ValueError as error:
            yield str(error)


def _fp32_residual(job: Job) -> Iterator[str]:
    model = job.config.model
    if model.fp32_residual_connection and not (job.config.train.bf16 or job.config.train.fp16):
        yield "--fp32-residual-connection needs --bf16 or --fp16: without them everything is fp32. Leave it out."
    elif model.fp32_residual_connection and model.apply_residual_connection_post_layernorm:
        yield (
            "--fp32-residual-connection does not go with --apply-residual-connection-post-layernorm: norms give "
            "16 bits, and there the residual is what they give. Leave one out."
        )


def _sequence_parallel(job: Job) -> Iterator[str]:
    length, tp = job.config.model.seq_length, job.config.parallel.tensor_model_parallel_size
    if job.config.parallel.sequence_parallel and length % tp:
        yield (
            f"--seq-length {length} is not divisible by --tensor-model-parallel-size {tp} under --sequence-parallel. "
            f"Try {near(length, tp)}."
        )


def _gather(job: Job) -> Iterator[str]:
    parallel = job.config.parallel
    if parallel.overlap_param_gather and not parallel.use_distributed_optimizer:
        yield (
            "--overlap-param-gather needs --use-distributed-optimizer: otherwise every rank has all parameters. "
            "Give both, or leave it out."
        )


def _backend(job: Job) -> Iterator[str]:
    if job.config.parallel.device == "cpu" and job.config.parallel.distributed_backend == "nccl":
        yield "--distributed-backend nccl needs a GPU, but --device is cpu. Try --distributed-backend gloo."


_ROTARY = (
    "--position-embedding-type --rotary-percent --rotary-interleaved --rotary-seq-len-interpolation-factor "
    "--use-rope-scaling --no-rope-freq --num-layers"
)

SHAPE_RULES: Rules = (
    ("--num-attention-heads --tensor-model-parallel-size", _heads),
    ("--num-query-groups --num-attention-heads", _query_groups),
    ("--num-query-groups --tensor-model-parallel-size", _query_groups_over_ranks),
    ("--hidden-size --num-attention-heads --kv-channels --position-embedding-type --rotary-percent", _head_width),
    ("--ffn-hidden-size --hidden-size --tensor-model-parallel-size", _mlp_width),
    ("--seq-length --max-position-embeddings", _positions),
    ("--swiglu --quick-geglu --squared-relu", _one_activation),
    (_ROTARY, _rotary_only),
    ("--num-layers --window-size --window-attn-skip-freq", _windows),
    ("--fp32-residual-connection --bf16 --fp16 --apply-residual-connection-post-layernorm", _fp32_residual),
    ("--seq-length --tensor-model-parallel-size --sequence-parallel", _sequence_parallel),
    ("--overlap-param-gather --use-distributed-optimizer", _gather),
    ("--distributed-backend --device", _backend),
)
"""Each rule with the flags that it reads."""
