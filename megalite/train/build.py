"""Where features enter: settings become values here, and past this file the settings are not visible."""

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from megalite.comm.collectives import all_equal
from megalite.config.derive import Derived, padded_vocab_size
from megalite.config.schema import Config, Model
from megalite.config.size import ModelSize, model_size
from megalite.data_parallel.buffer import GradBuffer
from megalite.mesh import ParallelMesh
from megalite.model.attention import Attention, DropoutCore, FusedCore
from megalite.model.dropout import HiddenDropout
from megalite.model.embedding import Embedding, LearnedPositions
from megalite.model.gpt import GPT
from megalite.model.init import init_weights
from megalite.model.layer import Layer
from megalite.model.mlp import MLP
from megalite.model.norm import LayerNorm, Norm, RMSNorm
from megalite.ops.activation import gelu, swiglu
from megalite.ops.rotary import rotary_table
from megalite.optimizer import rules
from megalite.optimizer.lr import LearningRate, WeightDecay
from megalite.optimizer.optimizer import Optimizer
from megalite.optimizer.param_groups import decays
from megalite.schedule.action import Program
from megalite.schedule.lower import lower
from megalite.schedule.schedules import forward_only, one_f_one_b
from megalite.shard import Init, parameters_with_specs
from megalite.tensor_parallel.embedding import VocabParallelEmbedding, VocabParallelHead, VocabShard
from megalite.tensor_parallel.layout import SequenceParallel, TensorParallel
from megalite.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear

NORMS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a training step works on: this rank's part of the model, and what is done to it."""

    mesh: ParallelMesh
    seed: int
    model: GPT
    buffer: GradBuffer
    optimizer: Optimizer
    program: Program
    evaluation: Program
    """Of one global batch, forward only."""
    learning_rate: LearningRate
    weight_decay: WeightDecay
    clip_grad: float
    global_batch_size: int


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
    )
    o = config.optimizer
    table = {"adam": rules.adam(o.adam_beta1, o.adam_beta2, o.adam_eps), "sgd": rules.sgd(o.sgd_momentum)}
    ranks, count = mesh.pp.size, derived.num_micro_batches
    return Engine(
        mesh=mesh,
        seed=config.train.seed,
        model=model,
        buffer=buffer,
        optimizer=Optimizer(buffer, table[o.optimizer]),
        program=lower(one_f_one_b(ranks, count), num_micro_batches=count)[mesh.pp.rank],
        evaluation=lower(forward_only(ranks, count), num_micro_batches=count, training=False)[mesh.pp.rank],
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
        global_batch_size=derived.global_batch_size,
    )


def check_replicas(engine: Engine) -> None:
    """Assert that ranks which must hold the same weights do: two sums say so, and cost one collective each."""

    def digest(parts: list[Tensor]) -> Tensor:
        total = torch.zeros(2, dtype=torch.float64, device=engine.mesh.device)
        for chunk in (chunk.double() for part in parts for chunk in part.split(1 << 20)):
            total += torch.stack([chunk.sum(), chunk.square().sum()])
        return total

    mesh, params = engine.mesh, engine.buffer.params
    assert all_equal(digest([params]), mesh.dp), "data parallel ranks start from different weights"
    replicas = [params[segment.range] for segment in engine.buffer.segments if segment.kind.replicated]
    assert all_equal(digest(replicas), mesh.tp), "tensor parallel ranks start from different replicas"


def build_model(m: Model, *, vocab_size: int, sequence_parallel: bool, mesh: ParallelMesh, dtype: torch.dtype) -> GPT:
    """The layers of this rank, their weights not yet set."""
    layout = (SequenceParallel if sequence_parallel else TensorParallel)(mesh.tp)
    size = model_size(m, vocab_size=vocab_size)
    place = _Common(layout=layout, dtype=dtype, device=mesh.device)
    parts = _Parts(m, size, place)
    padded = padded_vocab_size(
        vocab_size, divisible_by=m.make_vocab_size_divisible_by, tensor_parallel_size=mesh.tp.size
    )
    shard = VocabShard(vocab_size, padded, layout)
    init = Init(std=m.init_method_std if m.embedding_init_method_std is None else m.embedding_init_method_std)
    word = VocabParallelEmbedding(shard, m.hidden_size, init=init, **place)
    positions = size.max_position_embeddings
    learned = LearnedPositions(positions, m.hidden_size, init=init, **place) if size.learned_positions else None
    rotary = None
    if m.position_embedding_type == "rope":
        rotary = rotary_table(positions, size.kv_channels, m.rotary_base, dtype=dtype, device=mesh.device)
    return GPT(
        embedding=Embedding(
            word=word,
            position=learned,
            dropout=HiddenDropout(m.hidden_dropout, site="embedding", layer=0, layout=layout),
        ),
        layers={number: parts.layer(number) for number in range(m.num_layers)},
        final_norm=parts.norm(),
        head=VocabParallelHead(
            shard, m.hidden_size, tied=word.weight if size.tied_embeddings else None, init=init, **place
        ),
        rotary=rotary,
    )


class _Common(TypedDict):
    layout: TensorParallel
    dtype: torch.dtype
    device: torch.device


class _Parts:
    """Makes the parts of a layer as the settings ask."""

    def __init__(self, m: Model, size: ModelSize, place: _Common) -> None:
        self.m, self.size, self.place, self.layout = m, size, place, place["layout"]

    def layer(self, number: int) -> Layer:
        dropout = self.m.hidden_dropout
        return Layer(
            attention_norm=self.norm(),
            attention=self.attention(number),
            attention_dropout=HiddenDropout(dropout, site="attention", layer=number, layout=self.layout),
            mlp_norm=self.norm(),
            mlp=self.mlp(),
            mlp_dropout=HiddenDropout(dropout, site="mlp", layer=number, layout=self.layout),
        )

    def norm(self) -> Norm:
        return NORMS[self.m.normalization](self.m.hidden_size, eps=self.m.norm_epsilon, **self.place)

    def attention(self, number: int) -> Attention:
        m, groups, head_dim = self.m, self.size.num_query_groups, self.size.kv_channels
        queries = m.num_attention_heads // groups
        first_head = self.layout.tp.rank * m.num_attention_heads // self.layout.tp.size
        return Attention(
            number,
            qkv=ColumnParallelLinear(
                m.hidden_size,
                (groups, queries + 2, head_dim),
                split_dim=0,
                bias=self.size.qkv_bias,
                init=Init(std=m.init_method_std),
                **self.place,
            ),
            out=self.to_residual(m.num_attention_heads * head_dim),
            core=DropoutCore(m.attention_dropout, layer=number, first_head=first_head)
            if m.attention_dropout
            else FusedCore(),
            queries_per_group=queries,
            head_dim=head_dim,
        )

    def mlp(self) -> MLP:
        m, width = self.m, self.size.ffn_hidden_size
        fc1 = ColumnParallelLinear(
            m.hidden_size,
            (2 if self.size.gated_mlp else 1, width),
            split_dim=1,
            bias=self.size.linear_bias,
            init=Init(std=m.init_method_std),
            **self.place,
        )
        return MLP(fc1=fc1, activation=swiglu if self.size.gated_mlp else gelu, fc2=self.to_residual(width))

    def to_residual(self, width: int) -> RowParallelLinear:
        """A linear that writes to the residual stream: its std shrinks with depth, for two per layer add up there."""
        return RowParallelLinear(
            width,
            self.m.hidden_size,
            bias=self.size.linear_bias,
            init=Init(std=self.m.init_method_std / math.sqrt(2 * self.m.num_layers)),
            **self.place,
        )
