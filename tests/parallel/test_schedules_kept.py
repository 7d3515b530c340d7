"""C37: a new learning rate at resume. The checkpoint's schedules or those of the flags: the user says which."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from megalite.comm.collectives import all_reduce
from megalite.config.schema import Checkpoint, Config
from megalite.data.tokenizer import NullTokenizer
from megalite.mesh import ParallelMesh
from megalite.train.build import Engine
from megalite.train.resume import Progress
from megalite.train.save import writer
from megalite.train.step import train_step
from tests.parallel import harness
from tests.parallel.harness import GLOBAL_BATCH, VOCAB
from tests.pool import Pool

LAYOUTS: dict[str, dict[str, int]] = {"one": {}, "dp2": {"dp": 2}, "dp2-sharded": {"dp": 2, "sharded": 1}}
OVERRIDE, KEPT = {"override_opt_param_scheduler": True}, {"use_checkpoint_opt_param_scheduler": True}


def first_step(mesh: ParallelMesh, settings: Config) -> tuple[str, int, float, float]:
    """Train a step from --load, or from the start, and save; the log's line, and the step's number, rate and size."""
    resumed = harness.resume(mesh, settings, torch.float16 if settings.train.fp16 else torch.float64)
    engine, progress = resumed.engine, resumed.progress
    before = main_params(engine)
    batch = harness.batch(mesh, settings, progress.iteration + 1)
    result = train_step(engine, batch, step=progress.iteration + 1, consumed_samples=progress.schedule_samples)
    progress.count(GLOBAL_BATCH, skipped=False)
    if settings.checkpoint.save:
        progress = Progress(iteration=10, consumed_samples=10 * GLOBAL_BATCH, schedule_samples=10 * GLOBAL_BATCH)
        writer(engine, settings, NullTokenizer(VOCAB))(progress).result()
    square = (main_params(engine) - before).square().sum()
    moved = (all_reduce(square, mesh.owners) if settings.parallel.use_distributed_optimizer else square).sqrt().item()
    return resumed.note, progress.iteration, result.learning_rate, moved / min(result.grad_norm, 1.0)


def main_params(engine: Engine) -> Tensor:
    """Those that this rank owns."""
    return torch.cat([main for _, main in engine.optimizer.mains()])


def job(
    layout: str, *, style: str, lr: float, min_lr: float, decay: float = 0.0, fp16: bool = False, **kept: object
) -> Config:
    """One step of SGD without momentum moves the weights by the rate times the clipped gradient."""
    config = harness.config("gpt2", LAYOUTS[layout], optimizer="sgd")
    schedule = {"lr_decay_style": style, "lr": lr, "min_lr": min_lr, "weight_decay": decay, "sgd_momentum": 0.0}
    return replace(
        config,
        optimizer=replace(config.optimizer, **schedule),
        train=replace(config.train, fp16=fp16, initial_loss_scale=1024.0),
        checkpoint=Checkpoint(**kept),  # type: ignore[arg-type]
    )


def resume(pool: Pool, layout: str, folder: Path, **changes: object) -> tuple[str, int, float, float]:
    """From a checkpoint of 10 iterations at a constant 6e-4, with cosine from 1e-5 to 1e-6."""
    grid = harness.grid(LAYOUTS[layout])
    fp16 = bool(changes.get("fp16"))
    pool.run(grid, first_step, job(layout, style="constant", lr=6e-4, min_lr=0.0, fp16=fp16, save=str(folder)))
    asked = {"style": "cosine", "lr": 1e-5, "min_lr": 1e-6, "load": str(folder), **changes}
    return pool.run(grid, first_step, job(layout, **asked))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["dp2", "dp2-sharded"])
@pytest.mark.parametrize("more", [{}, {"no_load_optim": True}, {"fp16": True}])
@pytest.mark.parametrize(("choice", "rate"), [(OVERRIDE, 5.5e-6), (KEPT, 6e-4)])
def test_the_rate_is_the_one_chosen(
    pool: Pool, tmp_path: Path, layout: str, choice: dict[str, bool], rate: float, more: dict[str, bool]
) -> None:
    """In 16 bits, too, it is the main params that move by it, though fp32 rounds steps as small as these."""
    note, iteration, logged, moved = resume(pool, layout, tmp_path, **choice, **more)
    assert iteration == 11
    assert logged == pytest.approx(rate)
    assert moved == pytest.approx(rate, rel=1e-2 if "fp16" in more else 1e-3)
    assert "--lr: 1e-05 here, 0.0006 in the checkpoint" in note


def test_neither_lists_what_differs(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--use-checkpoint-opt_param-scheduler, or with those of the flags") as raised:
        resume(pool, "one", tmp_path, decay=0.5)
    lines = [line.strip() for line in str(raised.value).splitlines()[1:-1]]
    assert lines == [
        "--lr: 1e-05 here, 0.0006 in the checkpoint",
        "--min-lr: 1e-06 here, not read in the checkpoint",
        "--lr-decay-iters or -samples, in samples: 160 here, not read in the checkpoint",
        "--lr-decay-style: cosine here, constant in the checkpoint",
        "--weight-decay at the end: 0.5 here, 0 in the checkpoint",
    ]


def test_what_is_not_read_does_not_differ(pool: Pool, tmp_path: Path) -> None:
    note, *_ = resume(pool, "one", tmp_path, style="constant", lr=6e-4, min_lr=1e-5)
    assert "here" not in note


@pytest.mark.parametrize(("choice", "size"), [(OVERRIDE, 300.0), (KEPT, 0.0)])
def test_weight_decay_is_chosen_with_it(pool: Pool, tmp_path: Path, choice: dict[str, bool], size: float) -> None:
    _, _, rate, moved = resume(pool, "one", tmp_path, decay=300.0, **choice)
    assert (moved > 2 * rate) == bool(size)


def test_finetune_starts_the_new_schedule(pool: Pool, tmp_path: Path) -> None:
    _, iteration, logged, _ = resume(pool, "one", tmp_path, finetune=True)
    assert (iteration, logged) == (1, 1e-5)
