"""Where features enter: settings become values here, and past this file the settings are not visible."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from megalite.arith.treatment import treatment
from megalite.comm.collectives import (
    start_all_reduce,
    start_ordered_reduce_scatter,
    start_ordered_sum,
    start_reduce_scatter,
)
from megalite.comm.p2p import Link
from megalite.config.batch_schedule import BatchSchedule
from megalite.config.derive import Derived, bucket_size
from megalite.config.pipeline import Pipeline
from megalite.config.schema import Config, Train
from megalite.data_parallel.buffer import GradBuffer
from megalite.data_parallel.main_grads import MainGrads
from megalite.data_parallel.owned_grads import OwnedGrads
from megalite.data_parallel.policy import Policy, Replicated, Sharded, StartSum, rounded
from megalite.mesh import Group, ParallelMesh
from megalite.model.gpt import GPT
from megalite.model.init import init_weights
from megalite.observe.timers import Timers
from megalite.ops.registry import Kernels
from megalite.ops.table import OPS
from megalite.optimizer import rules
from megalite.optimizer.lr import LearningRate, Schedules, WeightDecay
from megalite.optimizer.muon import Muon
from megalite.optimizer.optimizer import Optimizer
from megalite.optimizer.scaler import ConstantScale, DynamicScale
from megalite.pipeline_parallel.executor import Watch, unwatched
from megalite.pipeline_parallel.mail import Mail
from megalite.schedule.action import Program
from megalite.schedule.lower import lower
from megalite.schedule.partition import partition
from megalite.schedule.schedules import forward_only, placement, schedule_of
from megalite.shard import parameters_by_stage
from megalite.train.homes import homes_of
from megalite.train.stages import build_stages

Programs = Callable[[int], Program]
"""This rank's program for any number of micro-batches, each made and proven once."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a training step works on: this rank's part of the model, and what is done to it."""

    mesh: ParallelMesh
    seed: int
    vocab_size: int
    """Rows of the vocabulary, without padding."""
    stages: dict[int, GPT]
    """Its stages of the model, by number."""
    kernels: Kernels
    mail: Mail
    buffer: GradBuffer
    optimizer: Optimizer
    program: Programs
    """Of a step of training."""
    evaluation: Programs
    """Forward only."""
    schedules: Schedules
    clip_grad: float
    loss_scale: ConstantScale
    check_for_nan: bool
    """Whether numbers that are not finite stop the run."""
    batch_schedule: BatchSchedule
    timers: Timers
    watch: Watch


def build(config: Config, derived: Derived, *, vocab_size: int, mesh: ParallelMesh, dtype: torch.dtype) -> Engine:
    """Make this rank's part of the model, initialised, with its buffer, optimizer and program."""
    asked = derived.pipeline
    kernels = Kernels(config.train.kernels, mesh.device.type, OPS)
    placed = placement(asked.schedule, asked.num_ranks, asked.num_chunks)
    stages = build_stages(
        config.model,
        config.memory,
        partition(config.model, config.parallel, vocab_size=vocab_size),
        placed,
        vocab_size=vocab_size,
        sequence_parallel=config.parallel.sequence_parallel,
        mesh=mesh,
        kernels=kernels,
        dtype=dtype,
    )
    for stage in stages.values():
        init_weights(stage, config.train.seed)
    held = parameters_by_stage(stages)
    tied = frozenset() if config.model.untie_embeddings_and_output_weights else frozenset({"embedding.word.weight"})
    untied = sum(weight.numel() for entries in held.values() for name, weight, _ in entries if name not in tied)
    buffer = GradBuffer(
        held,
        treat=partial(
            treatment,
            decoupled=config.optimizer.decoupled_lr is not None,
            by_matrix=config.optimizer.optimizer == "muon",
        ),
        tied=tied,
        bucket_size=bucket_size(config.parallel, mesh.dp.size, untied),
        policy=_policy(config, mesh),
        keep=OwnedGrads if config.parallel.shards_gradients else MainGrads,
        overlap=config.parallel.overlap_grad_reduce,
        overlap_gather=config.parallel.overlap_param_gather,
        dtype=dtype,
        device=mesh.device,
    )
    if config.parallel.overlap_param_gather:
        for stage in stages.values():
            buffer.wait_in_forward(stage)
    program, evaluation = programs(asked, placed, mesh.pp.rank, sync_each=buffer.grads.sums_each)
    return Engine(
        mesh=mesh,
        seed=config.train.seed,
        vocab_size=vocab_size,
        stages=stages,
        kernels=kernels,
        mail=build_mail(placed, mesh, sequence_parallel=config.parallel.sequence_parallel),
        buffer=buffer,
        optimizer=_optimizer(config, buffer, mesh),
        program=program,
        evaluation=evaluation,
        schedules=schedules_of(config, derived),
        clip_grad=config.optimizer.clip_grad,
        loss_scale=_loss_scale(config.train),
        check_for_nan=config.train.check_for_nan_in_loss_and_grad,
        batch_schedule=derived.batch_schedule,
        timers=Timers(config.log.timing_log_level, mesh.device),
        watch=unwatched,
    )


def _optimizer(config: Config, buffer: GradBuffer, mesh: ParallelMesh) -> Optimizer:
    o = config.optimizer
    adam = {"torch": rules.adam, "apex": rules.apex_adam}[o.adam_kernel](o.adam_beta1, o.adam_beta2, o.adam_eps)
    if o.optimizer == "muon":
        return Muon(
            buffer,
            adam,
            mesh.tp,
            momentum=o.muon_momentum,
            nesterov=o.muon_use_nesterov,
            splits_qkv=o.muon_split_qkv,
            steps=o.muon_num_ns_steps,
            scale=o.muon_scale_mode,
            extra=o.muon_extra_scale_factor,
        )
    rule = {"adam": adam, "sgd": rules.sgd(o.sgd_momentum)}[o.optimizer]
    return Optimizer(buffer, rule, homes_of(config.offload, mesh))


def schedules_of(config: Config, derived: Derived) -> Schedules:
    """The learning rates and the weight decay as the settings ask."""
    o = config.optimizer
    rate = LearningRate(
        max_lr=o.lr,
        min_lr=o.min_lr,
        init_lr=o.lr_warmup_init,
        warmup=derived.lr_warmup_samples,
        decay=derived.lr_decay_samples,
        style=o.lr_decay_style,
        wsd_style=o.lr_wsd_decay_style,
        wsd_decay=derived.lr_wsd_decay_samples,
    )
    lowest = o.min_lr if o.decoupled_min_lr is None else o.decoupled_min_lr
    return Schedules(
        learning_rate=rate,
        decoupled=None if o.decoupled_lr is None else replace(rate, max_lr=o.decoupled_lr, min_lr=lowest),
        weight_decay=WeightDecay(
            start=derived.start_weight_decay,
            end=derived.end_weight_decay,
            samples=derived.train_samples,
            style=o.weight_decay_incr_style,
        ),
    )


def _loss_scale(train: Train) -> ConstantScale:
    if train.loss_scale is not None or not train.fp16:
        return ConstantScale(1.0 if train.loss_scale is None else train.loss_scale)
    return DynamicScale(
        train.initial_loss_scale,
        minimum=train.min_loss_scale,
        window=train.loss_scale_window,
        hysteresis=train.hysteresis,
    )


def _policy(config: Config, mesh: ParallelMesh) -> Policy:
    """Who owns which gradients, and how they are summed."""

    def summing(free: StartSum, ordered: StartSum) -> StartSum:
        start = ordered if config.train.deterministic_mode else free
        return rounded(start, torch.bfloat16) if config.parallel.grad_reduce_in_bf16 else start

    all_reduce = summing(start_all_reduce, start_ordered_sum)
    if not config.parallel.use_distributed_optimizer:
        return Replicated(mesh.dp, all_reduce)
    return Sharded(
        mesh.shards,
        mesh.instances,
        start_reduce_scatter=summing(start_reduce_scatter, start_ordered_reduce_scatter),
        start_all_reduce=all_reduce,
    )


def build_mail(placed: Sequence[int], mesh: ParallelMesh, *, sequence_parallel: bool) -> Mail:
    """What joins this rank's stages to those before and after them."""
    alone = Group(name="alone", ranks=(mesh.rank,), rank=0)
    # Under sequence parallelism each tp rank has a part of its own to send; otherwise all hold the same.
    return Mail(Link(mesh.pp, copies=alone if sequence_parallel else mesh.tp), placed)


def programs(
    asked: Pipeline, placed: Sequence[int], rank: int, *, sync_each: bool = False
) -> tuple[Programs, Programs]:
    """The programs of training and of evaluation; `sync_each`: gradients are summed over dp in every micro-batch."""

    @cache
    def training(count: int) -> Program:
        return lower(schedule_of(asked, count), num_micro_batches=count, sync_each=sync_each)[rank]

    @cache
    def evaluation(count: int) -> Program:
        return lower(forward_only(placed, count), num_micro_batches=count, training=False)[rank]

    return training, evaluation
