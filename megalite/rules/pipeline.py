"""Rules about the ranks of a job and the stages that they run."""

from collections.abc import Iterator
from os.path import dirname

from megalite.config.pipeline import pipeline
from megalite.rules.job import Job, Rules, divisors
from megalite.schedule.partition import partition


def _ranks(job: Job) -> Iterator[str]:
    world, parallel = job.world_size, job.config.parallel
    tp, pp = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    if world % (tp * pp) == 0:
        return
    sizes = {"--tensor-model-parallel-size": tp, "--pipeline-model-parallel-size": pp}
    said = " x ".join(f"{flag} {size}" for flag, size in sizes.items() if size > 1)
    if world == 1:
        cure = f"Start the job with torchrun --nproc-per-node {tp * pp}."
    elif tp > 1 and pp > 1 and world % tp == 0:
        cure = f"Try --pipeline-model-parallel-size {divisors(world // tp)}."
    else:
        cure = f"Try {divisors(world)}{' for their product' if tp > 1 and pp > 1 else ''}."
    yield f"{said} does not divide the world size {world}. {cure}"


def _ways(job: Job) -> Iterator[str]:
    """What may be asked for together."""
    parallel, pp = job.config.parallel, job.config.parallel.pipeline_model_parallel_size
    counts = _given(job, "num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank")
    layout, ends = _given(job, "pipeline_model_parallel_layout"), _given(job, _ENDS)
    weights = _given(job, "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split")
    if len(counts + layout) > 1:
        yield f"{' and '.join(counts + layout)} both say how many stages a rank has. Give one."
    elif layout and ends + weights:
        yield f"{_clash(ends + weights, layout)}, which says where each layer is. Leave {_them(ends + weights)} out."
    elif ends and weights:
        yield f"{_clash(weights, ends)}. Give one, or --pipeline-model-parallel-layout."
    elif ends and parallel.num_layers_per_virtual_pipeline_stage:
        yield f"{_clash(counts, ends)}. Use --num-virtual-stages-per-pipeline-rank."
    elif counts and parallel.pipeline_schedule == "zb-v":
        yield f"{counts[0]} does not go with --pipeline-schedule zb-v, which has two stages on each rank. Leave it out."
    else:
        yield from _stages(job, [*counts, *layout, ""][0], pp)


def _stages(job: Job, flag: str, pp: int) -> Iterator[str]:
    """Layers to stages, and stages to a schedule."""
    model, parallel = job.config.model, job.config.parallel
    try:
        asked = pipeline(model, parallel)
        partition(model, parallel, vocab_size=0)
    except ValueError as error:
        yield str(error)
        return
    chunks, group = asked.num_chunks, parallel.microbatch_group_size_per_virtual_pipeline_stage
    if chunks > 1 and pp == 1 and asked.schedule != "zb-v":
        yield (
            f"{flag} asks for {chunks} stages a rank, but one rank alone has nobody to take turns with. Try "
            f"--pipeline-model-parallel-size {chunks}."
        )
    elif chunks > 1 and asked.schedule not in ("interleaved", "zb-v"):
        yield (
            f"{flag} asks for {chunks} stages a rank, but --pipeline-schedule {asked.schedule} has one. Try "
            "--pipeline-schedule interleaved."
        )
    elif chunks == 1 and asked.schedule == "interleaved":
        yield (
            "--pipeline-schedule interleaved needs several stages a rank. Try --num-virtual-stages-per-pipeline-rank 2 "
            "with --pipeline-model-parallel-size 2 or more."
        )
    elif group is not None and asked.schedule != "interleaved":
        yield f"{_GROUP} {group} needs several stages a rank. Try --num-virtual-stages-per-pipeline-rank 2."
    elif group is not None and group < pp:
        yield f"{_GROUP} {group} is less than --pipeline-model-parallel-size {pp}, and ranks would wait. Try {pp}."


def _clash(flags: list[str], others: list[str]) -> str:
    return f"{' and '.join(flags)} {'do' if len(flags) > 1 else 'does'} not go with {' and '.join(others)}"


def _them(flags: list[str]) -> str:
    return "them" if len(flags) > 1 else "it"


def _given(job: Job, names: str) -> list[str]:
    given = [name for name in names.split() if getattr(job.config.parallel, name) not in (None, False)]
    return ["--" + name.replace("_", "-") for name in given]


def _trace(job: Job) -> Iterator[str]:
    path = job.config.log.pipeline_trace
    if path is not None and dirname(path) and not job.exists(dirname(path)):
        yield f"--pipeline-trace {path}: there is no folder {dirname(path)}."


_GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
_ENDS = "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers"
_STAGES = (
    "--num-layers --hidden-size --num-attention-heads --pipeline-model-parallel-size --pipeline-schedule "
    "--num-virtual-stages-per-pipeline-rank --num-layers-per-virtual-pipeline-stage "
    "--pipeline-model-parallel-layout --decoder-first-pipeline-num-layers --decoder-last-pipeline-num-layers "
    f"--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split {_GROUP}"
)

PIPELINE_RULES: Rules = (
    ("--tensor-model-parallel-size --pipeline-model-parallel-size", _ranks),
    (_STAGES, _ways),
    ("--pipeline-trace", _trace),
)
"""Each rule with the flags that it reads."""
