"""One run of pretrain_gpt.py, from checked settings to the end."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import torch

from megalite.arith.flops import model_flops
from megalite.checkpoint.save import check_writable
from megalite.config.derive import Derived, derive
from megalite.config.schema import Config, Train
from megalite.config.size import model_size
from megalite.data.tokenizer import build_tokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.device import backend_for, deterministic, pick, set_up_cpu
from megalite.environment import Launch, compute_threads, end_with_launcher
from megalite.grid import grid_of
from megalite.mesh import ParallelMesh, start, stop
from megalite.observe.console import Console
from megalite.observe.jsonl import Jsonl
from megalite.observe.progress import ProgressFile
from megalite.observe.record import Logger, Sink
from megalite.observe.tensorboard import TensorBoard
from megalite.observe.wandb import WeightsAndBiases
from megalite.optimizer.statistics import num_parameters, num_zeros_in_grad, params_norm
from megalite.schedule.partition import describe, partition
from megalite.schedule.schedules import placement
from megalite.train.beginning import find_beginning
from megalite.train.build import Engine, build
from megalite.train.chores import chores, manual_gc
from megalite.train.datasets import datasets
from megalite.train.keeper import Keeper
from megalite.train.loop import Session, train
from megalite.train.memory_report import MemoryReport
from megalite.train.meter import Meter
from megalite.train.recorder import Recorder
from megalite.train.replicas import check_replicas
from megalite.train.resume import Progress, load_checkpoint, on_data
from megalite.train.save import writer
from megalite.train.stop import Stop


def run(config: Config, launch: Launch) -> None:
    """Train as the settings say. Raises ValueError or OSError for what the user can mend."""
    train_settings, parallel = config.train, config.parallel
    ending = Stop(minutes=train_settings.exit_duration_in_mins, started=time.monotonic())
    end_with_launcher(launch)
    with ExitStack() as stack:
        if train_settings.exit_signal_handler:
            stack.enter_context(ending.listening(train_settings.exit_signal))
        if train_settings.deterministic_mode:
            stack.enter_context(deterministic())
        if train_settings.manual_gc:
            stack.enter_context(manual_gc())
        derived = derive(config, launch.world_size)
        device = pick(parallel.device, launch.local_rank)
        where = device.type
        if where == "cpu":
            where += f", {set_up_cpu(compute_threads(launch, parallel.cpu_threads))}"
        backend = backend_for(device, parallel.distributed_backend)
        tokenizer = build_tokenizer(**vars(config.tokenizer))
        mesh = start(
            grid_of(parallel, launch.world_size),
            launch=launch,
            backend=backend,
            timeout_minutes=parallel.distributed_timeout_minutes,
            device=device,
        )
        stack.callback(stop)
        logger = _logger(config, mesh)
        stack.callback(logger.close)
        joined = f"{mesh.world.size} ranks joined by {backend}" if mesh.world.size > 1 else "1 rank"
        logger.note(f"{joined}, computing on {where}")
        session, progress = prepare(config, derived, tokenizer, mesh, logger, ending)
        stack.enter_context(session.keeper)
        train(session, progress)


def prepare(
    config: Config, derived: Derived, tokenizer: Tokenizer, mesh: ParallelMesh, logger: Sink, ending: Stop
) -> tuple[Session, Progress]:
    """All that training needs, and where it begins."""
    dtype = _dtype(config.train)
    left = check_writable(Path(config.checkpoint.save), mesh.world) if config.checkpoint.save else []
    beginning = find_beginning(config.checkpoint, tokenizer, mesh.world)
    vocab_size = beginning.vocab_size
    engine = build(config, derived, vocab_size=vocab_size, mesh=mesh, dtype=dtype)
    prove(engine, derived, config.train.micro_batch_size)
    resumed = load_checkpoint(engine, config, beginning)
    engine = resumed.engine
    check_replicas(engine, "At the start")
    recorder = None
    if config.log.pipeline_trace:
        recorder = Recorder(
            Path(config.log.pipeline_trace),
            steps=config.log.log_interval,
            asked=derived.pipeline,
            mesh=mesh,
            first_step=resumed.progress.iteration + 1,
        )
        engine = replace(engine, watch=recorder.watch)
    report = None
    if config.log.memory_report:
        report = MemoryReport(config, derived, engine, logger, vocab_size=vocab_size)
        engine = replace(engine, watch=report.watch)
    data = datasets(config, derived, tokenizer)
    resumed = on_data(resumed, data.order, allowed=config.checkpoint.allow_other_data)
    size = f"{num_parameters(engine.buffer, mesh):,} parameters"
    swept = f"--save: after a save that was cut off: {', '.join(left)}" if left else ""
    kernels = f"Kernels: {engine.kernels.described}."
    said = [swept, kernels, *_said(config), *(home.note for home in engine.optimizer.homes)]
    for note in [size, *_stages(config, derived, vocab_size), *data.notes, resumed.note, *said]:
        if note:
            logger.note(note)
    after_steps = [*([recorder.next_step] if recorder else []), *([report.tell] if report else [])]
    session = Session(
        config=config,
        derived=derived,
        engine=engine,
        datasets=data,
        logger=logger,
        meter=Meter(
            engine=engine,
            logger=logger,
            interval=config.log.log_interval,
            seq_length=config.model.seq_length,
            flops_per_sample=model_flops(model_size(config.model, vocab_size=vocab_size), samples=1),
            statistics=_statistics(config),
        ),
        stop=ending,
        chores=(*chores(config.train, engine), *after_steps),
        at_end=(lambda progress: logger.note(recorder.write()),) if recorder else (),
        keeper=Keeper(writer(engine, config, tokenizer), logger),
    )
    return session, resumed.progress


def _dtype(train_settings: Train) -> torch.dtype:
    """That of parameters and activations."""
    return torch.bfloat16 if train_settings.bf16 else torch.float16 if train_settings.fp16 else torch.float32


def prove(engine: Engine, derived: Derived, micro_batch_size: int) -> None:
    """Make every program that the run will come to: what is wrong with one is found before a byte is sent."""
    samples = micro_batch_size * derived.data_parallel_size
    for _, size in derived.batch_schedule.sizes:
        engine.program(size // samples)
    engine.evaluation(derived.eval_batch_size // samples)


def _stages(config: Config, derived: Derived, vocab_size: int) -> list[str]:
    """Where each layer is, if there is more than one stage."""
    asked = derived.pipeline
    stages = partition(config.model, config.parallel, vocab_size=vocab_size)
    placed = placement(asked.schedule, asked.num_ranks, asked.num_chunks)
    return describe(stages, placed) if len(stages) > 1 else []


def _said(config: Config) -> Iterator[str]:
    """What no number of the run shows."""
    train_settings = config.train
    if train_settings.deterministic_mode:
        yield "--deterministic-mode: deterministic algorithms only; gradients are summed in the order of ranks."
    if interval := train_settings.check_weight_hash_across_dp_replicas_interval:
        yield f"The weights of replicas are compared every {interval} iterations."
    if train_settings.manual_gc:
        every = train_settings.manual_gc_interval
        yield f"--manual-gc: garbage is collected at evaluations{f' and every {every} iterations' if every else ''}."
    if train_settings.exit_signal_handler:
        yield f"--exit-signal-handler: {train_settings.exit_signal} ends the run after the iteration in hand."


def _statistics(config: Config) -> dict[str, Callable[[Engine], float]]:
    wanted: dict[str, Callable[[Engine], float]] = {}
    if config.train.fp16:
        wanted["loss_scale"] = lambda engine: engine.loss_scale.value
    if config.log.log_params_norm:
        wanted["params_norm"] = lambda engine: params_norm(engine.optimizer, engine.mesh)
    if config.log.log_num_zeros_in_grad:
        wanted["num_zeros"] = lambda engine: num_zeros_in_grad(engine.buffer, engine.mesh)
    return wanted


def _logger(config: Config, mesh: ParallelMesh) -> Sink:
    """Rank 0 reports; the others keep silent."""
    if mesh.rank != 0:
        return Sink()
    log, save = config.log, config.checkpoint.save
    sinks: list[Sink] = [Console(sys.stdout, times=log.timing_log_option)]
    if log.log_jsonl:
        sinks.append(Jsonl(Path(log.log_jsonl)))
    if log.tensorboard_dir:
        directory, interval = Path(log.tensorboard_dir), log.tensorboard_log_interval
        sinks.append(TensorBoard(directory, times=log.log_timers_to_tensorboard, interval=interval))
    if log.wandb_project:
        sinks.append(
            WeightsAndBiases(
                project=log.wandb_project,
                name=log.wandb_exp_name,
                directory=Path(log.wandb_save_dir) if log.wandb_save_dir else Path(save or ".") / "wandb",
                settings=asdict(config),
                times=log.log_timers_to_tensorboard,
                interval=log.tensorboard_log_interval,
            )
        )
    if log.log_progress and save:
        sinks.append(ProgressFile(Path(save) / "progress.txt", ranks=mesh.world.size))
    return Logger(sinks)
