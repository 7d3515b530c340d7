"""The settings of the layout; config/schema.py says how fields are read."""

from dataclasses import dataclass
from typing import Literal

from megalite.config.field import option


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the job is spread over processes and devices."""

    tensor_model_parallel_size: int = option(1, at_least=1)
    """Ranks that share each layer's matrices."""
    sequence_parallel: bool = False
    """Split activations over the sequence outside the tensor parallel regions."""
    pipeline_model_parallel_size: int = option(1, at_least=1)
    """Ranks that share the layers, each with stages of its own."""
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"] | None = None
    """The order of forwards and backwards. Unset: 1f1b, or interleaved where ranks have several stages."""
    num_virtual_stages_per_pipeline_rank: int | None = option(at_least=1)
    """Stages on each pipeline rank, which it runs interleaved. Unset: 1, or 2 for zb-v."""
    num_layers_per_virtual_pipeline_stage: int | None = option(at_least=1)
    """The same, said by the number of layers in a stage."""
    microbatch_group_size_per_virtual_pipeline_stage: int | None = option(at_least=1)
    """Micro-batches that a rank runs through one stage before it turns to its next. Unset: the pipeline size."""
    pipeline_model_parallel_layout: str | None = None
    """What each stage has: E embedding, t a layer, L loss, | next stage: `E|(t|)*3,tL`."""
    decoder_first_pipeline_num_layers: int | None = option(at_least=1)
    """Layers of the first pipeline rank (under zb-v, of the first stage); the other ranks share the rest."""
    decoder_last_pipeline_num_layers: int | None = option(at_least=1)
    """Layers of the last pipeline rank (under zb-v, of the last stage); the other ranks share the rest."""
    account_for_embedding_in_pipeline_split: bool = False
    """Let the embedding count as a layer where layers are dealt out to stages."""
    account_for_loss_in_pipeline_split: bool = False
    """Let the loss count as a layer where layers are dealt out to stages."""
    use_tp_pp_dp_mapping: bool = False
    """Number ranks in the order tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp: stages are neighbours, replicas are not."""
    ddp_bucket_size: int | None = option(at_least=1)
    """Elements in one gradient bucket. Unset: a stage at once; under --overlap-grad-reduce, --overlap-param-gather or
    --data-parallel-sharding-strategy optim_grads 40 million, or 1 million x data parallel size if that is more."""
    ddp_num_buckets: int | None = option(at_least=1)
    """The same, said by the number of buckets into which a rank's parameters are cut, tied embeddings aside."""
    overlap_grad_reduce: bool = False
    """Reduce each gradient bucket over data parallel ranks as soon as it is complete, during the backward pass."""
    grad_reduce_in_bf16: bool = False
    """Send gradients to the other data parallel ranks in bf16. Micro-batches are still added up in fp32: by each rank,
    or, where gradients are shards (optim_grads), after every one of them was rounded and sent."""
    use_distributed_optimizer: bool = False
    """Shard main parameters and optimizer states over data parallel ranks: gradients are reduce-scattered, parameters
    gathered (ZeRO, stage 1)."""
    num_distributed_optimizer_instances: int = option(1, at_least=1)
    """Copies of what --use-distributed-optimizer shards, each shared out over its own neighbouring data parallel ranks.
    Only sums of what a rank owns, once a step, go from one to another: more memory, less between nodes."""
    data_parallel_sharding_strategy: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"] | None = None
    """What --use-distributed-optimizer shards: the optimizer's (optim), or gradients as well (optim_grads: ZeRO, stage
    2), which are reduced in every micro-batch. Unset: optim."""
    overlap_param_gather: bool = False
    """Gather the parameters of each bucket under the next forward pass, by the time that they are needed."""
    distributed_backend: Literal["auto", "gloo", "nccl"] = "auto"
    """The communication library; auto is nccl on a GPU, gloo without one."""
    distributed_timeout_minutes: int = option(10, at_least=1)
    """Minutes that a rank waits for the others in one collective before it gives up."""
    cpu_threads: int | None = option(at_least=1)
    """Threads of each rank on a CPU. Unset: OMP_NUM_THREADS, or under torchrun the cores divided among the ranks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto is a GPU where there is one."""

    @property
    def shards_gradients(self) -> bool:
        """Whether a rank keeps only the part of the main gradients that it owns."""
        return self.data_parallel_sharding_strategy == "optim_grads"
