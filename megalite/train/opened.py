"""A trained model, opened from its checkpoint alone."""

from dataclasses import dataclass, fields
from pathlib import Path

import torch

from megalite.checkpoint.format import find, read_index
from megalite.checkpoint.load import load
from megalite.config.schema import Model
from megalite.data.tokenizer import rebuild_tokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.mesh import ParallelMesh
from megalite.model.gpt import GPT
from megalite.shard import Shard, parameters_with_specs
from megalite.train.build import build_model


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The model of a checkpoint, in fp32, and its tokenizer if the checkpoint carries one."""

    model: GPT
    max_positions: int
    tokenizer: Tokenizer | None


def open_checkpoint(root: Path, *, mesh: ParallelMesh, step: int | None = None) -> Opened:
    """Build the model that a checkpoint describes, at the mesh's tensor parallel size, and load its weights."""
    directory = find(root, step)
    scalars = read_index(directory).scalars
    facts, vocab_size = scalars["model"], scalars["vocab_size"]
    settings = {field.name: facts[field.name] for field in fields(Model) if field.name in facts}
    model = build_model(
        Model(**{"seq_length": facts["max_position_embeddings"], **settings}),
        vocab_size=vocab_size,
        sequence_parallel=False,
        mesh=mesh,
        dtype=torch.float32,
    )
    shards = [
        Shard(name=name, global_shape=spec.global_shape, box=spec.box, tensor=spec.view(parameter.data))
        for name, parameter, spec in parameters_with_specs(model)
    ]
    load(directory, shards, mesh.world)
    tokenizer = rebuild_tokenizer(scalars["tokenizer"], directory / "tokenizer") if scalars.get("tokenizer") else None
    return Opened(model=model, max_positions=facts["max_position_embeddings"], tokenizer=tokenizer)
