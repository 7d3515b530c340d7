"""Where features enter: settings become values here, and past this file the settings are not visible."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from megalite.comm.collectives import start_all_reduce, start_ordered_sum
from megalite.config.batch_schedule import BatchSchedule
from megalite.config.derive import Derived, padded_vocab_size
from megalite.config.schema import Config, Model
from megalite.config.size import model_size
from megalite.data_parallel.buffer import GradBuffer
from megalite.gradient import main_dtype
from megalite.mesh import Group, ParallelMesh
from megalite.model.dropout import HiddenDropout
from megalite.model.embedding import Embedding, LearnedPositions
from megalite.model.gpt import GPT
from megalite.model.init import init_weights
from megalite.observe.timers import Timers
from megalite.ops.rotary import Scaling, rotary_table
from megalite.optimizer import rules
from megalite.optimizer.lr import LearningRate, WeightDecay
from megalite.optimizer.optimizer import Optimizer
from megalite.optimizer.param_groups import decays
from megalite.schedule.action import Program
from megalite.schedule.lower import lower
from megalite.schedule.schedules import forward_only, make_schedule, placement
from megalite.shard import parameters_with_specs
from megalite.tensor_parallel.embedding import VocabParallelEmbedding, VocabParallelHead, VocabShard
from megalite.tensor_parallel.layout import SequenceParallel, TensorParallel
from megalite.train.parts import Parts


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a training step works on: this rank's part of the model, and what is done to it."""

    mesh: ParallelMesh
    seed: int
    model: GPT
    buffer: GradBuffer
    optimizer: Optimizer
    program: Callable[[int], Program]
    """What a step of so many micro-batches does."""
    evaluation: Callable[[int], Program]
    """The same, forward only."""
    learning_rate: LearningRate
    weight_decay: WeightDecay
    clip_grad: float
    batch_schedule: BatchSchedule
    timers: Timers


def build(config: Config, derived: Derived, *, vocab_size: int, mesh: ParallelMesh, dtype: torch.dtype) -> Engine:
    """Make this rank's part of the model, initialised, with its buffer, optimizer and program."""
    model = build_model(
        config.model,
        vocab_size=vocab_size,
        sequence_parallel=config.parallel.sequence_parallel,
        mesh=mesh,
        dtype=dtype,
    )
    init_weights(model, config.train.seed)
    buffer = GradBuffer(
        parameters_with_specs(model),
        decays=decays,
        tied=frozenset() if config.model.untie_embeddings_and_output_weights else frozenset({"embedding.word.weight"}),
        dp=mesh.dp,
        bucket_size=derived.bucket_size,
        overlap=config.parallel.overlap_grad_reduce,
        start_sum=start_ordered_sum if config.train.deterministic_mode else start_all_reduce,
    )
    o = config.optimizer
    table = {"adam": rules.adam(o.adam_beta1, o.adam_beta2, o.adam_eps), "sgd": rules.sgd(o.sgd_momentum)}
    program, evaluation = programs(mesh.pp)
    return Engine(
        mesh=mesh,
        seed=config.train.seed,
        model=model,
        buffer=buffer,
        optimizer=Optimizer(buffer, table[o.optimizer]),
        program=program,
        evaluation=evaluation,
        learning_rate=LearningRate(
            max_lr=o.lr,
            min_lr=o.min_lr,
            init_lr=o.lr_warmup_init,
            warmup=derived.lr_warmup_samples,
            decay=derived.lr_decay_samples,
            style=o.lr_decay_style,
            wsd_style=o.lr_wsd_decay_style,
            wsd_decay=derived.lr_wsd_decay_samples,
        ),
        weight_decay=WeightDecay(
            start=derived.start_weight_decay,
            end=derived.end_weight_decay,
            samples=derived.train_samples,
            style=o.weight_decay_incr_style,
        ),
        clip_grad=o.clip_grad,
        batch_schedule=derived.batch_schedule,
        timers=Timers(config.log.timing_log_level, mesh.device),
    )


def programs(pp: Group) -> tuple[Callable[[int], Program], Callable[[int], Program]]:
    """The programs of training and of evaluation for any number of micro-batches, each made once."""

    @cache
    def training(count: int) -> Program:
        schedule = make_schedule("1f1b", num_ranks=pp.size, num_micro_batches=count)
        return lower(schedule, num_micro_batches=count)[pp.rank]

    @cache
    def evaluation(count: int) -> Program:
        schedule = forward_only(placement("1f1b", pp.size, 1), count)
        return lower(schedule, num_micro_batches=count, training=False)[pp.rank]

    return training, evaluation


def build_model(m: Model, *, vocab_size: int, sequence_parallel: bool, mesh: ParallelMesh, dtype: torch.dtype) -> GPT:
    """The layers of this rank, their weights not yet set."""
    layout = (SequenceParallel if sequence_parallel else TensorParallel)(mesh.tp)
    size = model_size(m, vocab_size=vocab_size)
    parts = Parts(m, size, layout=layout, dtype=dtype, device=mesh.device)
    padded = padded_vocab_size(
        vocab_size, divisible_by=m.make_vocab_size_divisible_by, tensor_parallel_size=mesh.tp.size
    )
    shard = VocabShard(vocab_size, padded, layout)
    std = m.init_method_std if m.embedding_init_method_std is None else m.embedding_init_method_std
    init, positions = parts.init(vocab_size, m.hidden_size, std=std), size.max_position_embeddings
    word = VocabParallelEmbedding(shard, m.hidden_size, init=init, **parts.common)
    return GPT(
        embedding=Embedding(
            word=word,
            position=LearnedPositions(
                positions, m.hidden_size, init=parts.init(positions, m.hidden_size, std=std), **parts.common
            )
            if size.learned_positions
            else None,
            dropout=HiddenDropout(m.hidden_dropout, site="embedding", layer=0, layout=layout),
            dtype=main_dtype(dtype) if m.fp32_residual_connection else dtype,
        ),
        layers={number: parts.layer(number) for number in range(m.num_layers)},
        final_norm=parts.norm(m.hidden_size),
        head=VocabParallelHead(
            shard, m.hidden_size, tied=word.weight if size.tied_embeddings else None, init=init, **parts.common
        ),
        rotary=rotary_table(
            positions,
            size.rotary_dim,
            m.rotary_base,
            interpolation=m.rotary_seq_len_interpolation_factor or 1,
            scaling=Scaling(factor=m.rope_scaling_factor) if m.use_rope_scaling else None,
            dtype=dtype,
            device=mesh.device,
        )
        if size.rotary_dim
        else None,
    )
