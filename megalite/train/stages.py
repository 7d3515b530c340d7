"""The stages of the model that one rank holds, made as the settings ask; their weights are not yet set."""

from collections.abc import Sequence

import torch
from torch import nn

from megalite.config.derive import padded_vocab_size
from megalite.config.memory import Memory
from megalite.config.model import Model
from megalite.config.size import model_size
from megalite.gradient import WeightGrads, main_dtype
from megalite.mesh import ParallelMesh
from megalite.model.dropout import HiddenDropout
from megalite.model.embedding import Continued, Embedding
from megalite.model.gpt import GPT
from megalite.ops.registry import Kernels
from megalite.schedule.partition import Stage
from megalite.tensor_parallel.embedding import VocabParallelEmbedding, VocabShard
from megalite.tensor_parallel.layout import SequenceParallel, TensorParallel
from megalite.train.parts import Parts


def build_stages(
    m: Model,
    memory: Memory,
    stages: Sequence[Stage],
    placement: Sequence[int],
    *,
    vocab_size: int,
    sequence_parallel: bool,
    mesh: ParallelMesh,
    kernels: Kernels,
    dtype: torch.dtype,
) -> dict[int, GPT]:
    """The stages that `placement` puts on this rank, by their numbers."""
    size = model_size(m, vocab_size=vocab_size)
    layout = (SequenceParallel if sequence_parallel else TensorParallel)(mesh.tp)
    padded = padded_vocab_size(
        vocab_size, divisible_by=m.make_vocab_size_divisible_by, tensor_parallel_size=mesh.tp.size
    )
    shard = VocabShard(vocab_size, padded, layout)
    std = m.init_method_std if m.embedding_init_method_std is None else m.embedding_init_method_std
    at_both_ends = size.tied_embeddings and placement[0] != placement[-1]
    hidden_dtype = main_dtype(dtype) if m.fp32_residual_connection else dtype
    word: VocabParallelEmbedding | None = None
    built = {}
    for stage in (stage for stage in stages if placement[stage.number] == mesh.pp.rank):
        weight_grads = WeightGrads()
        parts = Parts(
            m,
            memory,
            size,
            layout=layout,
            weight_grads=weight_grads,
            kernels=kernels,
            dtype=dtype,
            device=mesh.device,
        )
        layers = {number: parts.layer(number) for number in stage.layers}
        matrix = parts.init(vocab_size, m.hidden_size, std=std)
        if stage.embedding or (stage.loss and size.tied_embeddings and word is None):
            word = VocabParallelEmbedding(shard, m.hidden_size, at_both_ends=at_both_ends, init=matrix, **parts.common)
        built[stage.number] = GPT(
            embedding=Embedding(
                word=word,
                position=parts.positions(std) if size.learned_positions else None,
                dropout=HiddenDropout(m.hidden_dropout, site="embedding", layer=0, layout=layout),
                dtype=hidden_dtype,
            )
            if stage.embedding and word is not None
            else Continued(word if stage.loss and size.tied_embeddings else None),
            layers=layers,
            blocks=parts.blocks(list(layers.values())),
            final_norm=parts.norm(m.hidden_size) if stage.loss else nn.Identity(),
            head=parts.head(shard, matrix, word if size.tied_embeddings else None) if stage.loss else nn.Identity(),
            rotary=parts.rotary() if size.rotary_dim else None,
            weight_grads=weight_grads,
            kernels=kernels,
            layout=layout,
            hidden_size=m.hidden_size,
            hidden_dtype=hidden_dtype,
            device=mesh.device,
        )
    return built
