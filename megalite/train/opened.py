"""A trained model, opened from its checkpoint alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from megalite.checkpoint.source import find_source, open_source
from megalite.config.memory import Memory
from megalite.config.parallel import Parallel
from megalite.config.schema import Config
from megalite.config.size import model_size
from megalite.config.stored_model import stored_model
from megalite.data.tokenizer import rebuild_tokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.mesh import ParallelMesh
from megalite.model.gpt import GPT
from megalite.model.inference import Inference
from megalite.ops.registry import Kernels
from megalite.ops.table import OPS
from megalite.pipeline_parallel.mail import Mail
from megalite.schedule.lower import lower
from megalite.schedule.partition import partition
from megalite.schedule.schedules import forward_only
from megalite.shard import Shard, parameters_by_stage
from megalite.train.build import build_mail
from megalite.train.stages import build_stages
from megalite.validate import check


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The model of a checkpoint, in fp32, and its tokenizer if the checkpoint carries one."""

    model: Inference
    max_positions: int
    tokenizer: Tokenizer | None


def open_checkpoint(root: Path, *, mesh: ParallelMesh, step: int | None = None) -> Opened:
    """Build the model of a checkpoint or of a Hugging Face folder, in the mesh's layout, and load its weights."""
    source = open_source(find_source(root, step))
    scalars = source.scalars
    model, vocab_size, tokenizer = stored_model(scalars["model"]), scalars["vocab_size"], scalars.get("tokenizer")
    parallel = Parallel(tensor_model_parallel_size=mesh.tp.size, pipeline_model_parallel_size=mesh.pp.size)
    problems = check(Config(model=model, parallel=parallel), mesh.world.size)
    sizes = {"--tensor-model-parallel-size", "--pipeline-model-parallel-size"}
    refused = [problem.text for problem in problems if sizes.intersection(problem.flags)]
    if refused:
        raise ValueError(f"{source.directory} cannot be opened by {mesh.world.size} ranks. " + " ".join(refused))
    placed = range(mesh.pp.size)
    chunks = build_stages(
        model,
        Memory(),
        partition(model, parallel, vocab_size=vocab_size),
        placed,
        vocab_size=vocab_size,
        sequence_parallel=False,
        mesh=mesh,
        kernels=Kernels("auto", mesh.device.type, OPS),
        dtype=torch.float32,
    )
    parameters = [entry for entries in parameters_by_stage(chunks).values() for entry in entries]
    source.load([Shard.of(name, spec, p.data) for name, p, spec in parameters], mesh.world)
    mail = build_mail(placed, mesh, sequence_parallel=False)
    return Opened(
        model=inference(chunks, mail, vocab_size=vocab_size, dtype=torch.float32),
        max_positions=model_size(model, vocab_size=vocab_size).max_position_embeddings,
        tokenizer=rebuild_tokenizer(tokenizer, source.tokenizer) if tokenizer else None,
    )


def inference(chunks: Mapping[int, GPT], mail: Mail, *, vocab_size: int, dtype: torch.dtype) -> Inference:
    """The stages of this rank, ready to be asked for logits."""
    program = lower(forward_only(mail.placement, 1), num_micro_batches=1, training=False)[mail.link.line.rank]
    return Inference(chunks, program=program, mail=mail, vocab_size=vocab_size, dtype=dtype)
