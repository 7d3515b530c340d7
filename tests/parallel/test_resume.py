"""A run saved in any layout goes on in any other as if nothing had happened.

Layouts have sizes that do not divide each other: 3 data parallel ranks, stages of uneven depth, a vocabulary that is
padded differently, tied embeddings (gpt2) and grouped queries (llama).
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from megalite.checkpoint.format import read_index
from megalite.checkpoint.load import read_tensor
from megalite.checkpoint.place import find
from megalite.config.schema import Checkpoint, Config
from megalite.data.tokenizer import NullTokenizer
from megalite.mesh import ParallelMesh
from megalite.optimizer.optimizer import MAIN
from megalite.train.resume import Progress
from megalite.train.save import writer
from megalite.train.step import train_step
from tests.parallel import harness
from tests.parallel.harness import VOCAB, Layout, soak
from tests.pool import Pool

LAYOUTS: dict[str, Layout] = {
    "one": {},
    "pp2": {"pp": 2},
    "tp2": {"tp": 2},
    "dp3-sharded": {"dp": 3, "sharded": 1},
    "pp2-v2": {"pp": 2, "schedule": "interleaved", "v": 2},
    "tp2-sp": {"tp": 2, "sp": 1},
    "pp3-uneven": {"pp": 3, "layout": "Et|tt|tL"},
    "pp4": {"pp": 4},
    "dp2": {"dp": 2},
    "dp3": {"dp": 3},
    "pp2-dp2": {"pp": 2, "dp": 2, "pp-first": 1},
    "tp4": {"tp": 4},
    "tp2-sp-pp2": {"tp": 2, "sp": 1, "pp": 2, "schedule": "zb-v"},
    "tp2-sp-dp2": {"tp": 2, "sp": 1, "dp": 2},
    "dp4-sharded": {"dp": 4, "sharded": 1, "bucket": 3000, "overlap": 1, "gather": 1},
    "pp2-dp2-sharded": {"pp": 2, "dp": 2, "sharded": 1},
    "host": {"offload": "cpu", "early": 1},
    "dp2-sharded-disk": {"dp": 2, "sharded": 1, "offload": "disk", "share": 0.6},
}
PAIRS = list(product(LAYOUTS, LAYOUTS))
"""`make soak` runs all of them."""
CHAINS = {
    ("gpt2", "adam"): [name for i, name in enumerate(LAYOUTS) if i % 2],
    ("llama", "sgd"): [name for i, name in enumerate(LAYOUTS) if not i % 2],
    ("llama", "adam"): ["tp2-sp-dp2", "dp3-sharded", "pp3-uneven", "tp4"],
}
"""One run each that changes its layout after every step: each layout is left, and come to."""
LAYERS, STEPS, BATCH = 4, 2, 12


def steps(mesh: ParallelMesh, settings: Config, dtype: torch.dtype, number: int = STEPS) -> list[float]:
    """Go on from --load, or start; the losses of `number` more steps; save them if --save is given."""
    resumed = harness.resume(mesh, settings, dtype)
    engine, progress = resumed.engine, resumed.progress
    losses = []
    for _ in range(number):
        step, samples = progress.iteration + 1, progress.schedule_samples
        losses.append(train_step(engine, harness.batch(mesh, settings, step), step=step, consumed_samples=samples).loss)
        progress.count(BATCH, skipped=False)
    if settings.checkpoint.save:
        writer(engine, settings, NullTokenizer(VOCAB))(progress).result()
    return losses


def settings(
    model: str, layout: str, *, load: Path | None = None, save: Path | None = None, optimizer: str = "adam"
) -> Config:
    kept = Checkpoint(load=load and str(load), save=save and str(save), exit_on_missing_checkpoint=True)
    config = harness.config(
        model, LAYOUTS[layout], dropout=0.1, optimizer=optimizer, num_layers=LAYERS, global_batch_size=BATCH
    )
    return replace(config, checkpoint=kept)


def losses(pool: Pool, layout: str, config: Config, dtype: torch.dtype, number: int = STEPS) -> list[float]:
    results = pool.run(harness.grid(LAYOUTS[layout]), steps, config, dtype, number)
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize(("model", "optimizer"), CHAINS)
def test_a_run_goes_on_through_many_layouts(pool: Pool, tmp_path: Path, model: str, optimizer: str) -> None:
    layouts = CHAINS[model, optimizer]
    whole = whole_run(model, optimizer, len(layouts))
    for number, layout in enumerate(layouts):
        load = tmp_path if number else None
        [loss] = losses(
            pool, layout, settings(model, layout, load=load, save=tmp_path, optimizer=optimizer), torch.float64, 1
        )
        assert loss == pytest.approx(whole[number], rel=1e-10), layouts[: number + 1]


def test_the_product_has_all_pairs() -> None:
    assert len(PAIRS) >= 40 and set(LAYOUTS) == {name for chain in CHAINS.values() for name in chain}
    assert sum(len(list(pairwise(chain))) for chain in CHAINS.values()) >= len(LAYOUTS) - 1


@pytest.mark.parametrize(("there", "here"), [soak(*pair) for pair in PAIRS])
def test_any_layout_goes_on_from_any_other(pool: Pool, tmp_path: Path, there: str, here: str) -> None:
    model, optimizer = ("gpt2", "adam") if (len(there) + len(here)) % 2 else ("llama", "sgd")
    begun = losses(pool, there, settings(model, there, save=tmp_path, optimizer=optimizer), torch.float64)
    resumed = losses(pool, here, settings(model, here, load=tmp_path, optimizer=optimizer), torch.float64)
    whole = whole_run(model, optimizer, 2 * STEPS)
    assert begun + resumed == pytest.approx(whole, rel=1e-10)


@cache
def whole_run(model: str, optimizer: str, number: int) -> list[float]:
    """The losses of one rank that trains through."""
    return losses(Pool(), "one", settings(model, "one", optimizer=optimizer), torch.float64, number)


EXACT = ["tp2-sp-pp2", "dp3-sharded", "dp4-sharded", "pp2-dp2-sharded", "host", "dp2-sharded-disk"]


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [(layout, torch.float32 if i % 2 else torch.bfloat16) for i, layout in enumerate(EXACT)]
    + [soak(layout, dtype) for layout in LAYOUTS for dtype in (torch.bfloat16, torch.float32)],
)
def test_the_same_layout_goes_on_bit_for_bit(pool: Pool, tmp_path: Path, layout: str, dtype: torch.dtype) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    losses(pool, layout, settings("gpt2", layout, save=first), dtype)
    resumed = losses(pool, layout, settings("gpt2", layout, load=first, save=second), dtype)
    assert resumed == losses(pool, layout, settings("gpt2", layout), dtype, 2 * STEPS)[STEPS:]


def test_another_model_is_refused(pool: Pool, tmp_path: Path) -> None:
    losses(pool, "one", settings("llama", "one", save=tmp_path), torch.float32)
    config = settings("llama", "one", load=tmp_path)
    other = replace(config, model=replace(config.model, rotary_base=500000, norm_epsilon=1e-6))
    with pytest.raises(ValueError, match=r"(?s)rotary_base: 500000 here, 10000 there.*norm_epsilon: 1e-06 here"):
        losses(pool, "one", other, torch.float32)


def test_finetune_takes_the_weights_alone(pool: Pool, tmp_path: Path) -> None:
    losses(pool, "one", settings("gpt2", "one", save=tmp_path), torch.float32)
    [mesh] = pool.run(harness.grid({}), lambda mesh: mesh)
    before = harness.make(mesh, settings("gpt2", "one"), torch.float32).buffer.params
    resumed = settings("gpt2", "one", load=tmp_path)
    tuned = harness.resume(mesh, replace(resumed, checkpoint=replace(resumed.checkpoint, finetune=True)), torch.float32)
    assert tuned.progress == Progress()
    assert tuned.engine.optimizer.steps == 0
    assert not torch.equal(before, tuned.engine.buffer.params)


@pytest.mark.parametrize(("there", "here"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_another_precision_takes_the_most_exact_weights(
    pool: Pool, tmp_path: Path, there: torch.dtype, here: torch.dtype
) -> None:
    losses(pool, "one", settings("gpt2", "one", save=tmp_path), there)
    [mesh] = pool.run(harness.grid({}), lambda mesh: mesh)
    engine = harness.resume(mesh, settings("gpt2", "one", load=tmp_path), here).engine
    saved = {
        name.removeprefix(MAIN): read_tensor(find(tmp_path), name)
        for name in sorted(read_index(find(tmp_path)).tensors)  # main params after the params that they replace
        if not name.startswith("optimizer.exp_avg")
    }
    exact = [shard for shard in engine.optimizer.shards() if shard.name.startswith(MAIN)] or engine.buffer.shards()
    for shard in exact:
        assert torch.equal(shard.tensor, saved[shard.name.removeprefix(MAIN)])


def test_another_global_batch_is_refused_where_iterations_count(pool: Pool, tmp_path: Path) -> None:
    losses(pool, "one", settings("gpt2", "one", save=tmp_path), torch.float32)
    config = settings("gpt2", "one", load=tmp_path)
    other = replace(config, train=replace(config.train, global_batch_size=4))
    with pytest.raises(ValueError, match=r"consumed 24 samples in 2 .*would be 8: .*at --global-batch-size 12"):
        losses(pool, "one", other, torch.float32)


def test_ranks_that_see_different_checkpoints_say_so(pool: Pool, tmp_path: Path) -> None:
    losses(pool, "one", settings("gpt2", "one", save=tmp_path / "0"), torch.float32)
    with pytest.raises(AssertionError, match=r"rank 0 sees iter_0000002; rank 1 sees no checkpoint"):
        pool.run(harness.grid({"dp": 2}), load_from_own_folder, tmp_path)


def load_from_own_folder(mesh: ParallelMesh, root: Path) -> None:
    harness.resume(mesh, settings("gpt2", "dp2", load=root / str(mesh.rank)), torch.float32)
