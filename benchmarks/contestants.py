"""Who takes part. A contestant is a function from a rank's tokens and labels [b, s] to its loss: one training step."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta

import torch
import torch.nn.functional as F
from huggingface import huggingface
from megatron_core import megatron_core, whole_norm
from plain import Plain, Sizes, plain_weights
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from megalite.config.derive import derive
from megalite.config.model import Model
from megalite.config.parallel import Parallel
from megalite.config.schema import Config, Optimizer, Train
from megalite.data.batch import MicroBatch
from megalite.grid import grid_of
from megalite.mesh import build_mesh
from megalite.train.build import Engine, build
from megalite.train.step import train_step

Step = Callable[[Tensor, Tensor], float]
LEARNING_RATE, WEIGHT_DECAY, BETAS, EPS, CLIP = 1e-3, 0.1, (0.9, 0.999), 1e-8, 1.0
TRAIN_ITERS = 100_000  # more than are ever run: the learning rate is constant
ALONE, TP, SHARDED = Parallel(), Parallel(tensor_model_parallel_size=2), Parallel(use_distributed_optimizer=True)
GRADIENTS = replace(SHARDED, data_parallel_sharding_strategy="optim_grads", ddp_num_buckets=4)


def config_of(sizes: Sizes, parallel: Parallel, *, micro_batches: int = 1) -> Config:
    """megalite's settings, without dropout; a step's batch is so many micro-batches."""
    llama = sizes.llama
    return Config(
        model=Model(
            num_layers=sizes.layers,
            hidden_size=sizes.hidden,
            ffn_hidden_size=sizes.ffn,
            num_attention_heads=sizes.heads,
            group_query_attention=sizes.groups != sizes.heads,
            num_query_groups=sizes.groups,
            seq_length=sizes.sequence,
            position_embedding_type="rope" if llama else "learned_absolute",
            normalization="RMSNorm" if llama else "LayerNorm",
            swiglu=llama,
            add_bias_linear=not llama,
            untie_embeddings_and_output_weights=llama,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        parallel=parallel,
        train=Train(micro_batch_size=sizes.micro_batch // micro_batches, train_iters=TRAIN_ITERS),
        optimizer=Optimizer(
            lr=LEARNING_RATE,
            lr_decay_style="constant",
            weight_decay=WEIGHT_DECAY,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            adam_eps=EPS,
            clip_grad=CLIP,
        ),
    )


def engine_of(config: Config, *, vocab: int, rank: int, ranks: int) -> Engine:
    """megalite's engine, its biases and norms random so that a wrong conversion cannot hide."""
    mesh = build_mesh(
        grid_of(config.parallel, ranks), rank=rank, device=torch.device("cpu"), timeout=timedelta(minutes=5)
    )
    engine = build(config, derive(config, ranks), vocab_size=vocab, mesh=mesh, dtype=torch.float32)
    for slot in engine.buffer.slots:
        if slot.spec.init.std == 0:
            noise = torch.randn(slot.spec.global_shape, generator=torch.Generator().manual_seed(len(slot.name))) * 0.1
            part = noise[tuple(slice(*bounds) for bounds in slot.spec.box)]
            slot.spec.view(slot.parameter.data).copy_(part + slot.spec.init.constant)
    return engine


def megalite(sizes: Sizes, *, rank: int, ranks: int = 1, parallel: Parallel = ALONE, micro_batches: int = 1) -> Step:
    """A training step of megalite, as pretrain_gpt.py makes it."""
    config = config_of(sizes, parallel, micro_batches=micro_batches)
    return step_of(engine_of(config, vocab=sizes.vocab, rank=rank, ranks=ranks), sizes, micro_batches=micro_batches)


def step_of(engine: Engine, sizes: Sizes, *, micro_batches: int = 1) -> Step:
    """A training step of an engine."""
    size = sizes.micro_batch // micro_batches
    whole = MicroBatch(
        tokens=torch.empty(0),
        labels=torch.empty(0),
        loss_mask=torch.ones(size, sizes.sequence),
        position_ids=torch.arange(sizes.sequence).repeat(size, 1),
        sample_ids=torch.arange(size),
    )
    steps = 0

    def step(tokens: Tensor, labels: Tensor) -> float:
        nonlocal steps
        steps += 1
        parts = zip(tokens.split(size), labels.split(size), strict=True)
        batches = [replace(whole, tokens=rows, labels=wanted) for rows, wanted in parts]
        return train_step(engine, batches, step=steps, consumed_samples=(steps - 1) * sizes.micro_batch).loss

    return step


def cross_entropy(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The mean loss of a model that gives logits."""
    return lambda tokens, labels: F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def is_split(parameter: Tensor) -> bool:
    """Whether a rank holds a part of it: torch's tensor parallelism makes DTensors, megatron-core marks its own."""
    return isinstance(parameter, DTensor) or getattr(parameter, "tensor_model_parallel", False)


def torch_step(
    model: nn.Module,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    scope: Callable[[], AbstractContextManager[None]] = nullcontext,
    whole_norm: Callable[[Tensor], Tensor] = DTensor.full_tensor,
    micro_batches: int = 1,
) -> Step:
    """A training step with the best that torch offers: fused AdamW, foreach clipping, gradients freed between steps.

    `whole_norm` makes of the norm of what is split the norm over all ranks.
    """
    # Fused and foreach kernels take lists of one kind; torch's own tensor parallelism leaves norms as plain tensors.
    kinds = [
        [p for p in model.parameters() if is_split(p) is split and (p.dim() > 1) is decayed]
        for split in (True, False)
        for decayed in (True, False)
    ]
    groups = [{"params": kind, "weight_decay": WEIGHT_DECAY if kind[0].dim() > 1 else 0.0} for kind in kinds if kind]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS, fused=True)
    sets = [part for part in (kinds[0] + kinds[1], kinds[2] + kinds[3]) if part]

    def norm(part: list[nn.Parameter]) -> Tensor:
        mine = nn.utils.get_total_norm([p.grad for p in part if p.grad is not None], foreach=True)
        return whole_norm(mine) if is_split(part[0]) else mine

    def clip() -> None:
        total = torch.linalg.vector_norm(torch.stack([norm(part) for part in sets]))
        for part in sets:
            nn.utils.clip_grads_with_norm_(part, CLIP, total, foreach=True)

    def step(tokens: Tensor, labels: Tensor) -> float:
        losses = []
        for part in zip(tokens.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            with scope():
                loss = loss_of(*part) / micro_batches
                loss.backward()
            losses.append(loss.full_tensor() if isinstance(loss, DTensor) else loss)
        clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = sum(loss.item() for loss in losses)
        assert math.isfinite(value)
        return value

    return step


def our_weights(sizes: Sizes, *, rank: int = 0, tp: int = 1) -> dict[str, Tensor]:
    """The weights that every contestant starts from, by megalite's names: of tp ranks, this one's part."""
    config = config_of(sizes, Parallel(tensor_model_parallel_size=tp))
    engine = engine_of(config, vocab=sizes.vocab, rank=rank, ranks=tp)
    return {slot.name: slot.spec.view(slot.parameter.data).clone() for slot in engine.buffer.slots}


def plain_model(sizes: Sizes) -> Plain:
    """The plain model with megalite's weights."""
    model = Plain(sizes)
    model.load_state_dict(plain_weights(sizes, our_weights(sizes)))
    return model


def ddp(sizes: Sizes) -> Step:
    """Torch's data parallelism over all ranks."""
    model = DistributedDataParallel(plain_model(sizes), gradient_as_bucket_view=True)
    return torch_step(model, cross_entropy(model))


def sharded_by_torch(sizes: Sizes) -> nn.Module:
    """The plain model under torch's FSDP2, which keeps parameters gathered from forward to backward."""
    model = plain_model(sizes)
    for part in (*model.layers, model):
        fully_shard(part, reshard_after_forward=False)
    return model


def fsdp(sizes: Sizes) -> Step:
    """Torch's sharded data parallelism over all ranks."""
    model = sharded_by_torch(sizes)
    return torch_step(model, cross_entropy(model))


def alone(model: nn.Module, *, micro_batches: int = 1) -> Step:
    """A model on one rank."""
    return torch_step(model, cross_entropy(model), micro_batches=micro_batches)


def megatron(sizes: Sizes, *, rank: int, ranks: int) -> Step:
    """megatron-core's tensor parallelism over all ranks."""
    loss = megatron_core(sizes, our_weights(sizes, rank=rank, tp=ranks))
    return torch_step(loss, loss, whole_norm=whole_norm)


def dtensor(sizes: Sizes, *, ranks: int, sp: bool) -> Step:
    """Torch's tensor parallelism over all ranks, the loss parallel too, as torchtitan plans it."""
    between = Shard(1) if sp else Replicate()
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=between)

    def entering(*others: None) -> ParallelStyle:
        """Gathers x once for all the linears of a module, so that its gradient is reduced once too."""
        return PrepareModuleInput(input_layouts=(between, *others), desired_input_layouts=(Replicate(), *others))

    plan = {
        "word": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        **{f"layers.*.attention.{name}": column for name in "qkv"},
        **{f"layers.*.mlp.{name}": column for name in (("gate", "up") if sizes.llama else ("fc1",))},
        "layers.*.attention": entering(None),
        "layers.*.mlp": entering(),
        "layers.*.attention.out": row,
        "layers.*.mlp.fc2": row,
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    if sp:
        plan |= {name: SequenceParallel() for name in ("layers.*.attention_norm", "layers.*.mlp_norm", "norm")}
        if not sizes.llama:
            plan["position"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
    model = parallelize_module(plain_model(sizes), init_device_mesh("cpu", (ranks,)), plan)
    if not sizes.llama:
        model.head.weight = model.word.weight
    return torch_step(model, cross_entropy(model), scope=loss_parallel)


CONTESTANTS: dict[str, Callable[[Sizes, int], Step]] = {
    "megalite": lambda sizes, rank: megalite(sizes, rank=rank),
    "plain torch": lambda sizes, rank: alone(plain_model(sizes)),
    "Hugging Face": lambda sizes, rank: alone(huggingface(sizes, our_weights(sizes))),
    "megalite DP": lambda sizes, rank: megalite(sizes, rank=rank, ranks=2),
    "megalite DP, overlapped": lambda sizes, rank: megalite(
        sizes, rank=rank, ranks=2, parallel=Parallel(overlap_grad_reduce=True)
    ),
    "megalite DP, sharded": lambda sizes, rank: megalite(sizes, rank=rank, ranks=2, parallel=SHARDED),
    "megalite DP, sharded, overlapped": lambda sizes, rank: megalite(
        sizes, rank=rank, ranks=2, parallel=replace(SHARDED, overlap_grad_reduce=True, overlap_param_gather=True)
    ),
    "megalite DP, gradients sharded": lambda sizes, rank: megalite(
        sizes, rank=rank, ranks=2, parallel=replace(GRADIENTS, overlap_grad_reduce=True, overlap_param_gather=True)
    ),
    "torch DDP": lambda sizes, rank: ddp(sizes),
    "torch FSDP2": lambda sizes, rank: fsdp(sizes),
    "megalite TP": lambda sizes, rank: megalite(sizes, rank=rank, ranks=2, parallel=TP),
    "megalite TP + SP": lambda sizes, rank: megalite(
        sizes, rank=rank, ranks=2, parallel=replace(TP, sequence_parallel=True)
    ),
    "megatron-core TP": lambda sizes, rank: megatron(sizes, rank=rank, ranks=2),
    "DTensor TP": lambda sizes, rank: dtensor(sizes, ranks=2, sp=False),
    "DTensor TP + SP": lambda sizes, rank: dtensor(sizes, ranks=2, sp=True),
}
"""Name: how one of its ranks is built."""
