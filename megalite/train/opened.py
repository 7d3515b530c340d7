"""A trained model, opened from its checkpoint alone."""

from dataclasses import dataclass
from pathlib import Path

import torch

from megalite.checkpoint.format import find, read_index
from megalite.checkpoint.load import load
from megalite.config.schema import Config, Parallel
from megalite.config.size import model_size
from megalite.data.tokenizer import rebuild_tokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.mesh import ParallelMesh
from megalite.model.gpt import GPT
from megalite.shard import Shard, parameters_with_specs
from megalite.train.build import build_model
from megalite.train.resume import described_model
from megalite.validate import check


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
    model, vocab_size = described_model(scalars), scalars["vocab_size"]
    config = Config(model=model, parallel=Parallel(tensor_model_parallel_size=mesh.tp.size))
    refused = [p.text for p in check(config, mesh.world.size) if "--tensor-model-parallel-size" in p.flags]
    if refused:
        raise ValueError(f"{directory} cannot be opened by {mesh.tp.size} ranks. " + " ".join(refused))
    gpt = build_model(model, vocab_size=vocab_size, sequence_parallel=False, mesh=mesh, dtype=torch.float32)
    load(directory, [Shard.of(n, spec, p.data) for n, p, spec in parameters_with_specs(gpt)], mesh.world)
    tokenizer = rebuild_tokenizer(scalars["tokenizer"], directory / "tokenizer") if scalars.get("tokenizer") else None
    positions = model_size(model, vocab_size=vocab_size).max_position_embeddings
    return Opened(model=gpt, max_positions=positions, tokenizer=tokenizer)
