"""Rules about what is kept, what is computed again, and what replicas share."""

from collections.abc import Iterator

from megalite.config.derive import data_parallel_size
from megalite.config.memory import MODULES
from megalite.config.size import ffn_hidden_size, query_groups
from megalite.rules.job import Job, Rules, divisors

_ELSEWHERE = dict.fromkeys(("moe", "moe_act", "shared_experts"), "there are no experts yet") | {
    "mla_up_proj": "attention has no latent variant"
}


def _granularity(job: Job) -> Iterator[str]:
    memory = job.config.memory
    needs: dict[str, dict[str, object]] = {
        "full": {
            f"--recompute-method {memory.recompute_method}": memory.recompute_method,
            f"--recompute-num-layers {memory.recompute_num_layers}": memory.recompute_num_layers,
            "--distribute-saved-activations": memory.distribute_saved_activations,
        },
        "selective": {f"--recompute-modules {' '.join(memory.recompute_modules)}": memory.recompute_modules},
    }
    for granularity, given in needs.items():
        flags = [flag for flag, is_given in given.items() if is_given]
        if flags and memory.recompute_granularity != granularity:
            verb = "needs" if len(flags) == 1 else "need"
            yield f"{' and '.join(flags)} {verb} --recompute-granularity {granularity}. Give it, or leave them out."


def _modules(job: Job) -> Iterator[str]:
    for name in job.config.memory.recompute_modules:
        if name in _ELSEWHERE:
            yield f"--recompute-modules {name} is not supported: {_ELSEWHERE[name]}. Leave it out."
        elif name not in MODULES:
            yield f"--recompute-modules {name} is not one of {', '.join(MODULES)}."


def _distributed(job: Job) -> Iterator[str]:
    parallel, model, tp = job.config.parallel, job.config.model, job.config.parallel.tensor_model_parallel_size
    if not job.config.memory.distribute_saved_activations:
        return
    if tp == 1:
        yield (
            "--distribute-saved-activations needs tensor parallel ranks to keep a part each. Try "
            "--tensor-model-parallel-size 2."
        )
    elif parallel.sequence_parallel:
        yield (
            "--distribute-saved-activations does not go with --sequence-parallel, under which each rank has its own "
            "part. Leave it out."
        )
    elif model.seq_length * job.config.train.micro_batch_size * model.hidden_size % tp:
        yield (
            f"--distribute-saved-activations: --seq-length {model.seq_length} x --micro-batch-size "
            f"{job.config.train.micro_batch_size} x --hidden-size {model.hidden_size} is not divisible by "
            f"--tensor-model-parallel-size {tp}. Try --micro-batch-size {tp}."
        )


def _sharding(job: Job) -> Iterator[str]:
    parallel = job.config.parallel
    strategy, pp = parallel.data_parallel_sharding_strategy, parallel.pipeline_model_parallel_size
    asked = f"--data-parallel-sharding-strategy {strategy}"
    if strategy == "optim_grads_params":
        yield f"{asked} is not supported: each rank holds all parameters of its stages. {_nearest(job)}"
    elif strategy == "no_shard" and parallel.use_distributed_optimizer:
        yield f"{asked} does not go with --use-distributed-optimizer, which shards. Give one."
    elif strategy in ("optim", "optim_grads") and not parallel.use_distributed_optimizer:
        yield f"{asked} needs --use-distributed-optimizer. Give it, or leave this out."
    elif strategy == "optim_grads" and pp > 1:
        yield (
            f"{asked} reduces the gradients of every micro-batch, and a pipeline lives of many: with "
            f"--pipeline-model-parallel-size {pp} a step would send its gradients as often as it has micro-batches. "
            "Use --data-parallel-sharding-strategy optim."
        )
    elif strategy == "optim_grads" and parallel.pipeline_schedule in ("zb-h1", "zb-v"):
        yield (
            f"{asked} reduces what a whole backward gives, and --pipeline-schedule {parallel.pipeline_schedule} splits "
            "it. Leave the schedule out."
        )
    elif strategy == "optim_grads" and job.config.optimizer.optimizer == "muon":
        yield (
            f"{asked} does not go with --optimizer muon, which makes whole matrices in the memory of the gradients. "
            "Use --data-parallel-sharding-strategy optim."
        )


def _instances(job: Job) -> Iterator[str]:
    parallel, dp = job.config.parallel, data_parallel_size(job.config.parallel, job.world_size)
    count = parallel.num_distributed_optimizer_instances
    if count > 1 and not parallel.use_distributed_optimizer:
        yield (
            f"--num-distributed-optimizer-instances {count} needs --use-distributed-optimizer. Give it, or leave this "
            "out."
        )
    elif dp % count:
        yield (
            f"--num-distributed-optimizer-instances {count} does not divide the data parallel size {dp}. Try "
            f"{divisors(dp)}."
        )


def _nearest(job: Job) -> str:
    """The layout that comes nearest to parameters that are shared out."""
    model, parallel = job.config.model, job.config.parallel
    groups, tp = query_groups(model), parallel.tensor_model_parallel_size
    fitting = [
        size
        for size in range(tp + 1, job.world_size // parallel.pipeline_model_parallel_size + 1)
        if job.world_size % (size * parallel.pipeline_model_parallel_size) == 0
        and model.num_attention_heads % size == groups % size == ffn_hidden_size(model) % size == 0
    ]
    shared = f" with --tensor-model-parallel-size {fitting[-1]}, which shares parameters, too" if fitting else ""
    return f"Use --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads{shared}."


def _buckets(job: Job) -> Iterator[str]:
    size, count = job.config.parallel.ddp_bucket_size, job.config.parallel.ddp_num_buckets
    if size and count:
        yield f"--ddp-bucket-size {size} and --ddp-num-buckets {count} both say how large buckets are. Give one."


_SIZES = "--seq-length --micro-batch-size --hidden-size"
_LAYOUT = "--tensor-model-parallel-size --pipeline-model-parallel-size --pipeline-schedule"

MEMORY_RULES: Rules = (
    (
        "--recompute-granularity --recompute-method --recompute-num-layers --recompute-modules "
        "--distribute-saved-activations",
        _granularity,
    ),
    ("--recompute-modules", _modules),
    (f"--distribute-saved-activations --tensor-model-parallel-size --sequence-parallel {_SIZES}", _distributed),
    (f"--data-parallel-sharding-strategy --use-distributed-optimizer --optimizer {_LAYOUT}", _sharding),
    (f"--num-distributed-optimizer-instances --use-distributed-optimizer {_LAYOUT}", _instances),
    ("--ddp-bucket-size --ddp-num-buckets", _buckets),
)
"""Each rule with the flags that it reads."""
