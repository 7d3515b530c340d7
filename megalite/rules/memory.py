"""Rules about what is kept and what is computed again."""

from collections.abc import Iterator

from megalite.config.memory import MODULES
from megalite.rules.job import Job, Rules

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


_SIZES = "--seq-length --micro-batch-size --hidden-size"

MEMORY_RULES: Rules = (
    (
        "--recompute-granularity --recompute-method --recompute-num-layers --recompute-modules "
        "--distribute-saved-activations",
        _granularity,
    ),
    ("--recompute-modules", _modules),
    (f"--distribute-saved-activations --tensor-model-parallel-size --sequence-parallel {_SIZES}", _distributed),
)
"""Each rule with the flags that it reads."""
