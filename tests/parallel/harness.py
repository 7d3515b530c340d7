"""The one harness of the equality matrix: build a tiny run in any layout, step it, put its tensors together again."""

import math
import tempfile
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from torch import Tensor

from megalite.config.derive import derive
from megalite.config.model import Model
from megalite.config.offload import Offload
from megalite.config.parallel import Parallel
from megalite.config.schema import Config, Data, Optimizer, Train
from megalite.data.batch import MicroBatch
from megalite.data.sampler import micro_batch_samples
from megalite.data.tokenizer import NullTokenizer
from megalite.grid import Grid, grid_of
from megalite.mesh import ParallelMesh
from megalite.plan.rank import RankPlan, rank_plans
from megalite.shard import Shard
from megalite.train.beginning import find_beginning
from megalite.train.build import Engine, build
from megalite.train.resume import Resumed, load_checkpoint
from megalite.train.step import forward_backward, train_step

VOCAB, SEQUENCE, GLOBAL_BATCH = 61, 16, 8

_TINY = Model(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=8,
    seq_length=SEQUENCE,
    init_method_std=0.1,
    make_vocab_size_divisible_by=8,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "half rotary": ("llama", {"rotary_percent": 0.5}),
    "rotary pairs": ("llama", {"rotary_interleaved": True}),
    "interpolated": ("llama", {"rotary_seq_len_interpolation_factor": 4}),
    "llama 3 scaling": ("llama", {"use_rope_scaling": True, "rope_scaling_factor": 8.0, "rotary_base": 500}),
    "rotary in one layer": ("llama", {"no_rope_freq": "2"}),
    "no positions": ("llama", {"position_embedding_type": "none"}),
    "1p": ("gpt2", {"apply_layernorm_1p": True}),
    "1p rms": ("llama", {"apply_layernorm_1p": True, "norm_epsilon": 1e-3}),
    "exact gelu": ("gpt2", {"gelu": "exact"}),
    "squared relu": ("gpt2", {"squared_relu": True}),
    "quick geglu": ("llama", {"swiglu": False, "quick_geglu": True}),
    "wide heads": ("gpt2", {"kv_channels": 6}),
    "qkv biases": ("llama", {"add_qkv_bias": True}),
    "qk norm": ("llama", {"qk_layernorm": True}),
    "qk layer norm": ("llama", {"qk_layernorm": True, "normalization": "LayerNorm"}),
    "qk layer scaling": ("gpt2", {"apply_query_key_layer_scaling": True}),
    "post norm residual": ("gpt2", {"apply_residual_connection_post_layernorm": True}),
    "window": ("llama", {"window_size": "3,0"}),
    "window, one layer": ("gpt2", {"window_size": "(2,0)", "window_attn_skip_freq": "2"}),
    "off by one": ("gpt2", {"softmax_type": "off-by-one"}),
    "sinks": ("llama", {"softmax_type": "learnable"}),
    "sinks and window": ("gpt2", {"softmax_type": "learnable", "window_size": "4,0"}),
    "long enough for blocks": ("gpt2", {"seq_length": 128}),
    "xavier": ("gpt2", {"init_method_xavier_uniform": True}),
}
"""Models of the two families, each with one more setting."""

MODELS = {
    "gpt2": _TINY,
    "llama": replace(
        _TINY,
        ffn_hidden_size=48,
        group_query_attention=True,
        num_query_groups=4,
        position_embedding_type="rope",
        normalization="RMSNorm",
        swiglu=True,
        add_bias_linear=False,
        untie_embeddings_and_output_weights=True,
    ),
}


MODELS |= {name: replace(MODELS[base], **settings) for name, (base, settings) in VARIANTS.items()}


Layout = dict[str, Any]
"""Ranks along the axes, and switches: the flags of a case."""


def soak(*values: object) -> ParameterSet:
    """A row of a table that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


def grid(layout: Layout) -> Grid:
    """The ranks of a layout."""
    return grid_of(parallel(layout), math.prod(layout.get(axis, 1) for axis in ("tp", "pp", "dp")))


def parallel(layout: Layout) -> Parallel:
    """The flags that ask for a layout."""
    return Parallel(
        tensor_model_parallel_size=layout.get("tp", 1),
        sequence_parallel=bool(layout.get("sp")),
        pipeline_model_parallel_size=layout.get("pp", 1),
        pipeline_schedule=layout.get("schedule"),
        num_virtual_stages_per_pipeline_rank=layout.get("v"),
        pipeline_model_parallel_layout=layout.get("layout"),
        use_tp_pp_dp_mapping=bool(layout.get("pp-first")),
        overlap_grad_reduce=bool(layout.get("overlap")),
        ddp_bucket_size=layout.get("bucket"),
        ddp_num_buckets=layout.get("buckets"),
        use_distributed_optimizer=bool(layout.get("sharded")),
        data_parallel_sharding_strategy="optim_grads" if layout.get("sharded") == 2 else None,
        overlap_param_gather=bool(layout.get("gather")),
        num_distributed_optimizer_instances=layout.get("instances", 1),
    )


def offload(layout: Layout) -> Offload:
    """The flags that say where the optimizer's states live."""
    kind = layout.get("offload")
    return Offload(
        optimizer_cpu_offload=kind is not None,
        optimizer_offload_fraction=layout.get("share", 1.0),
        overlap_cpu_optimizer_d2h_h2d=bool(layout.get("early")),
        optimizer_offload_device=kind or "cpu",
        offload_dir=layout.get("dir") or (tempfile.mkdtemp(dir=_away().name) if kind == "disk" else None),
    )


@cache
def _away() -> tempfile.TemporaryDirectory[str]:
    """Where the folders of runs lie that name none; it goes with the tests."""
    return tempfile.TemporaryDirectory(prefix="megalite-away-")


def config(
    model: str,
    layout: Layout,
    *,
    dropout: float = 0.0,
    optimizer: str = "adam",
    micro_batch_size: int = 1,
    global_batch_size: int = GLOBAL_BATCH,
    num_layers: int = 2,
    bf16: bool = False,
    documents: bool = False,
) -> Config:
    """The settings of one case. Biases and norms start at random (see `make`), so that no term hides at zero."""
    return Config(
        model=replace(MODELS[model], hidden_dropout=dropout, attention_dropout=dropout, num_layers=num_layers),
        parallel=parallel(layout),
        train=Train(
            micro_batch_size=micro_batch_size, global_batch_size=global_batch_size, train_iters=20, seed=7, bf16=bf16
        ),
        optimizer=Optimizer(optimizer=optimizer, lr=1e-2, weight_decay=0.1),
        offload=offload(layout),
        data=Data(dataloader_inter_document_masking=documents),
    )


def make(mesh: ParallelMesh, settings: Config, dtype: torch.dtype) -> Engine:
    """A run in which biases and norms are random too, alike in every layout."""
    engine = build(settings, derive(settings, mesh.world.size), vocab_size=VOCAB, mesh=mesh, dtype=dtype)
    for slot in engine.buffer.slots:
        if not slot.spec.init.is_random:
            noise = torch.Generator().manual_seed(len(slot.name))
            full = torch.randn(slot.spec.global_shape, generator=noise, dtype=torch.float64) * 0.2
            full += slot.spec.init.constant
            slot.spec.view(slot.parameter.data).copy_(full[tuple(slice(*bounds) for bounds in slot.spec.box)])
    engine.optimizer.reload_main()
    return engine


def resume(mesh: ParallelMesh, settings: Config, dtype: torch.dtype) -> Resumed:
    """The run of `make`, with what --load names."""
    beginning = find_beginning(settings.checkpoint, NullTokenizer(VOCAB), mesh.world)
    return load_checkpoint(make(mesh, settings, dtype), settings, beginning)


def batch(mesh: ParallelMesh, settings: Config, step: int) -> list[MicroBatch]:
    """This rank's micro-batches of a random global batch in which samples count different numbers of tokens."""
    random = torch.Generator().manual_seed(step)
    length = settings.model.seq_length
    derived = derive(settings, mesh.world.size)
    size = derived.global_batch_size
    text = torch.randint(VOCAB, (size, length + 1), generator=random)
    counted = torch.rand(size, 1, generator=random) + torch.rand(size, length, generator=random) > 0.5
    apart = settings.data.dataloader_inter_document_masking
    documents = (torch.rand(size, length, generator=random) < 0.2).cumsum(1)
    return [
        MicroBatch(
            tokens=text[rows, :-1].clone(),
            labels=text[rows, 1:].clone(),
            loss_mask=counted[rows].float(),
            position_ids=torch.arange(length).repeat(len(indices), 1),
            sample_ids=torch.arange(indices.start, indices.stop),
            segment_ids=documents[rows] if apart else None,
        )
        for indices in micro_batch_samples(
            0,
            micro_batch_size=settings.train.micro_batch_size,
            num_micro_batches=derived.num_micro_batches,
            dp_rank=mesh.dp.rank,
            dp_size=mesh.dp.size,
        )
        for rows in [slice(indices.start, indices.stop)]
    ]


def plan_of(settings: Config, mesh: ParallelMesh) -> RankPlan:
    """The plan of this rank."""
    derived = derive(settings, mesh.world.size)
    return rank_plans(settings, derived, VOCAB, replica=mesh.dp.rank)[mesh.pp.rank]


def gradients(mesh: ParallelMesh, settings: Config, dtype: torch.dtype) -> tuple[float, list[Shard]]:
    """The loss of one step, and this rank's shards of the gradient."""
    engine = make(mesh, settings, dtype)
    loss = forward_backward(engine, batch(mesh, settings, 0), step=1)
    return loss, grad_shards(engine)


def grad_shards(engine: Engine) -> list[Shard]:
    """What this rank owns of the gradient."""
    return [
        Shard(
            name=piece.slot.name,
            global_shape=piece.slot.spec.global_shape,
            box=piece.box,
            tensor=engine.buffer.grads.of(piece).view([stop - start for start, stop in piece.box]),
        )
        for piece in engine.buffer.pieces
    ]


def curve(mesh: ParallelMesh, settings: Config, dtype: torch.dtype, steps: int) -> list[tuple[float, float]]:
    """(loss, gradient norm) of some training steps."""
    engine, results = make(mesh, settings, dtype), []
    for step in range(1, steps + 1):
        consumed = (step - 1) * GLOBAL_BATCH
        result = train_step(engine, batch(mesh, settings, step), step=step, consumed_samples=consumed)
        results.append((result.loss, result.grad_norm))
    return results


def assemble(ranks: list[list[Shard]]) -> tuple[dict[str, Tensor], list[str]]:
    """The logical tensors that the ranks' shards make up, and complaints: replicas that differ, elements not there."""
    whole: dict[str, Tensor] = {}
    complaints = []
    for shard in (shard for shards in ranks for shard in shards):
        full = whole.setdefault(shard.name, torch.full(shard.global_shape, torch.nan, dtype=shard.tensor.dtype))
        part = full[tuple(slice(*bounds) for bounds in shard.box)]
        if not part.isnan().all() and not torch.equal(part, shard.tensor):
            complaints.append(f"{shard.name}: replicas differ")
        part.copy_(shard.tensor)
    complaints += [f"{name}: not covered by the ranks" for name, tensor in whole.items() if tensor.isnan().any()]
    return whole, complaints


def distance(a: Tensor, b: Tensor) -> float:
    """max|a - b| / max|b|."""
    return ((a - b).abs().max() / b.abs().max()).item()
