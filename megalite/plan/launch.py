"""A layout as the flags of the trainer, and as a command to paste."""

from collections.abc import Sequence
from shlex import join

from megalite.config.cli import parse
from megalite.config.schema import Config
from megalite.plan.hardware import Cluster
from megalite.plan.layout import Layout
from megalite.validate import check


def layout_flags(layout: Layout, *, param_bytes: int = 2) -> list[str]:
    """What the trainer must be told to run this layout, in bf16 or in fp32, with all that it can hide hidden."""
    flags = ["--bf16"] if param_bytes == 2 else []
    if layout.tensor > 1:
        flags += ["--tensor-model-parallel-size", str(layout.tensor)]
    if layout.sequence_parallel:
        flags.append("--sequence-parallel")
    if layout.pipeline > 1:
        flags += ["--pipeline-model-parallel-size", str(layout.pipeline)]
        if layout.schedule not in ("1f1b", "interleaved"):
            flags += ["--pipeline-schedule", layout.schedule]
        if layout.schedule == "interleaved":
            flags += ["--num-virtual-stages-per-pipeline-rank", str(layout.chunks)]
    flags += ["--micro-batch-size", str(layout.micro_batch_size), "--global-batch-size", str(layout.global_batch_size)]
    if layout.data > 1:
        flags.append("--overlap-grad-reduce")
    if layout.zero and layout.data > 1:
        flags += ["--use-distributed-optimizer", "--overlap-param-gather"]
    if layout.zero == 2 and layout.data > 1:
        flags += ["--data-parallel-sharding-strategy", "optim_grads"]
    if layout.recompute != "none":
        flags += ["--recompute-granularity", layout.recompute]
    if layout.recompute == "full":
        flags += ["--recompute-method", "uniform" if layout.recomputed_layers is None else "block"]
        if layout.recomputed_layers is not None:
            flags += ["--recompute-num-layers", str(layout.recomputed_layers)]
    if layout.offload:
        flags += ["--optimizer-cpu-offload", "--optimizer-offload-fraction", f"{layout.offload:g}"]
    return flags


def launch_command(model_flags: Sequence[str], layout: Layout, cluster: Cluster, *, param_bytes: int = 2) -> str:
    """For each node; the data, the learning rate and the length are the user's."""
    nodes = f"--nnodes {cluster.nodes} --rdzv-backend c10d --rdzv-endpoint $HOST:29500 " if cluster.nodes > 1 else ""
    run = f"torchrun --nproc-per-node {cluster.gpus_per_node} {nodes}pretrain_gpt.py"
    rest = "--lr 3e-4 --train-iters 1000 --mock-data"
    return f"{run} {join([*model_flags, *layout_flags(layout, param_bytes=param_bytes)])} {rest}"


def problems(model_flags: Sequence[str], layout: Layout) -> list[str]:
    """What the trainer would say to this layout; nothing if it runs."""
    given = [*model_flags, *layout_flags(layout), "--lr", "3e-4", "--train-iters", "1000", "--mock-data"]
    parsed = parse(given)
    found = parsed.problems + check(parsed.config, layout.gpus)
    return [problem.text for problem in found]


def layout_of(config: Config, gpus: int) -> Layout:
    """The layout that flags of the trainer tell. The config is valid for so many GPUs."""
    parallel, train, memory = config.parallel, config.train, config.memory
    tensor, pipeline = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    chunks = parallel.num_virtual_stages_per_pipeline_rank or 1
    if per_stage := parallel.num_layers_per_virtual_pipeline_stage:
        chunks = config.model.num_layers // pipeline // per_stage
    data = gpus // (tensor * pipeline)
    schedule = parallel.pipeline_schedule or ("interleaved" if chunks > 1 else "1f1b")
    return Layout(
        tensor=tensor,
        sequence_parallel=parallel.sequence_parallel and tensor > 1,
        pipeline=pipeline,
        chunks=2 if schedule == "zb-v" else chunks,
        schedule=schedule,
        data=data,
        micro_batch_size=train.micro_batch_size,
        global_batch_size=train.global_batch_size or train.micro_batch_size * data,
        zero=parallel.use_distributed_optimizer + parallel.shards_gradients,
        recompute=memory.recompute_granularity or "none",
        recomputed_layers=memory.recompute_num_layers if memory.recompute_method == "block" else None,
        counted_ends=parallel.account_for_embedding_in_pipeline_split + parallel.account_for_loss_in_pipeline_split,
        offload=config.offload.share,
    )
