"""One run of pretrain_gpt.py, from checked settings to the end."""

import sys
from pathlib import Path

import torch

from megalite.arith.flops import model_flops
from megalite.config.derive import Derived, derive
from megalite.config.schema import Config
from megalite.config.size import model_size
from megalite.data.tokenizer import build_tokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.device import backend_for, pick
from megalite.environment import Launch
from megalite.grid import Grid
from megalite.mesh import ParallelMesh, start, stop
from megalite.observe.console import Console
from megalite.observe.jsonl import Jsonl
from megalite.observe.record import Logger, Sink
from megalite.observe.tensorboard import TensorBoard
from megalite.train.build import build, check_replicas
from megalite.train.datasets import datasets
from megalite.train.loop import Session, train
from megalite.train.resume import load_checkpoint, save_checkpoint


def run(config: Config, launch: Launch) -> None:
    """Train as the settings say. Raises ValueError or OSError for what the user can mend."""
    derived = derive(config, launch.world_size)
    device = pick(config.parallel.device, launch.local_rank)
    tokenizer = build_tokenizer(**vars(config.tokenizer))
    mesh = start(
        Grid(sizes={"tp": config.parallel.tensor_model_parallel_size, "dp": derived.data_parallel_size}),
        launch=launch,
        backend=backend_for(device)
        if config.parallel.distributed_backend == "auto"
        else config.parallel.distributed_backend,
        timeout_minutes=config.parallel.distributed_timeout_minutes,
        device=device,
    )
    logger = _logger(config, mesh)
    try:
        _train(config, derived, tokenizer, mesh, logger)
    finally:
        logger.close()
        stop()


def _train(config: Config, derived: Derived, tokenizer: Tokenizer, mesh: ParallelMesh, logger: Sink) -> None:
    dtype = torch.bfloat16 if config.train.bf16 else torch.float32
    engine = build(config, derived, vocab_size=tokenizer.vocab_size, mesh=mesh, dtype=dtype)
    progress, loaded = load_checkpoint(engine, config, tokenizer.vocab_size)
    check_replicas(engine)
    data = datasets(config, derived, tokenizer)
    for note in [*data.notes, loaded]:
        if note:
            logger.note(note)
    session = Session(
        config=config,
        derived=derived,
        engine=engine,
        datasets=data,
        logger=logger,
        save=lambda progress: save_checkpoint(engine, progress, config, tokenizer),
        flops_per_sample=model_flops(model_size(config.model, vocab_size=tokenizer.vocab_size), samples=1),
    )
    train(session, progress)


def _logger(config: Config, mesh: ParallelMesh) -> Sink:
    """Rank 0 reports; the others keep silent."""
    if mesh.rank != 0:
        return Sink()
    sinks: list[Sink] = [Console(sys.stdout)]
    if config.log.log_jsonl:
        sinks.append(Jsonl(Path(config.log.log_jsonl)))
    if config.log.tensorboard_dir:
        sinks.append(TensorBoard(Path(config.log.tensorboard_dir)))
    return Logger(sinks)
