"""Which pipeline the flags ask for."""

from dataclasses import dataclass

from megalite.config.model import Model
from megalite.config.parallel import Parallel
from megalite.config.pipeline_layout import layout_stages, quoted


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A schedule and the stages that it runs."""

    schedule: str
    num_ranks: int
    num_chunks: int
    """Stages on each rank."""
    group_size: int
    """Micro-batches that a rank of an interleaved schedule runs through one stage before it turns to its next."""

    @property
    def num_stages(self) -> int:
        """Stages of the whole model."""
        return self.num_ranks * self.num_chunks


def pipeline(model: Model, parallel: Parallel) -> Pipeline:
    """The pipeline. ValueError where the stages of a rank cannot be counted."""
    ranks, chunks = parallel.pipeline_model_parallel_size, _chunks(model, parallel)
    schedule = parallel.pipeline_schedule or ("interleaved" if chunks > 1 else "1f1b")
    return Pipeline(
        schedule=schedule,
        num_ranks=ranks,
        num_chunks=chunks,
        group_size=parallel.microbatch_group_size_per_virtual_pipeline_stage or ranks,
    )


def counted_as_layers(model: Model, parallel: Parallel) -> int:
    """The layers, and what else counts as one."""
    also = parallel.account_for_embedding_in_pipeline_split, parallel.account_for_loss_in_pipeline_split
    return model.num_layers + sum(also)


def say_layers(model: Model, parallel: Parallel) -> str:
    """The flag with the number of what is dealt out."""
    extra = counted_as_layers(model, parallel) - model.num_layers
    return f"--num-layers {model.num_layers}" + (f" + {extra} for embedding and loss" if extra else "")


def _chunks(model: Model, parallel: Parallel) -> int:
    ranks, per_stage = parallel.pipeline_model_parallel_size, parallel.num_layers_per_virtual_pipeline_stage
    if parallel.pipeline_schedule == "zb-v":
        return 2
    if parallel.pipeline_model_parallel_layout is not None:
        stages = len(layout_stages(parallel.pipeline_model_parallel_layout))
        if stages % ranks:
            laid_out = quoted(parallel.pipeline_model_parallel_layout)
            raise ValueError(f"{laid_out} has {stages} stages, no multiple of --pipeline-model-parallel-size {ranks}.")
        return stages // ranks
    if per_stage is None:
        return parallel.num_virtual_stages_per_pipeline_rank or 1
    counted = counted_as_layers(model, parallel)
    if counted % (ranks * per_stage):
        raise ValueError(
            f"{say_layers(model, parallel)} is not divisible by --pipeline-model-parallel-size "
            f"{ranks} x --num-layers-per-virtual-pipeline-stage {per_stage}. Use "
            "--num-virtual-stages-per-pipeline-rank 2, which deals out any number of layers."
        )
    return counted // (ranks * per_stage)
