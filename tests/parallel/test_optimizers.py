"""Update rules and param groups: the same in every layout."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megalite.arith.buckets import ALIGNED
from megalite.arith.parameters import layer_matrices
from megalite.config.schema import Checkpoint, Config
from megalite.config.size import model_size
from megalite.data.tokenizer import NullTokenizer
from megalite.grid import Grid
from megalite.mesh import ParallelMesh
from megalite.shard import Shard
from megalite.train.save import writer
from megalite.train.step import train_step
from tests.parallel import harness
from tests.parallel.harness import GLOBAL_BATCH, VOCAB, Layout, soak
from tests.pool import Pool

LAYOUTS: dict[str, Layout] = {
    "dp2": {"dp": 2},
    "dp2-sharded": {"dp": 2, "sharded": 1, "bucket": 3000, "overlap": 1, "gather": 1},
    "tp2-sp": {"tp": 2, "sp": 1},
    "pp2": {"pp": 2},
    "tp2-dp2-sharded": {"tp": 2, "dp": 2, "sharded": 1},
    "pp2-dp2-sharded": {"pp": 2, "dp": 2, "sharded": 1, "bucket": 3000},
    "dp4-instances": {"dp": 4, "sharded": 1, "instances": 2, "overlap": 1, "gather": 1, "buckets": 5},
    "pp2-dp2-instances": {"pp": 2, "dp": 2, "sharded": 1, "instances": 2},
}
GRADS: dict[str, Layout] = {
    "dp2-grads": {"dp": 2, "sharded": 2, "overlap": 1, "gather": 1, "bucket": 3000},
    "tp2-dp2-grads-host": {"tp": 2, "dp": 2, "sharded": 2, "buckets": 3, "offload": "cpu", "share": 0.5},
    "dp4-instances-grads": {"dp": 4, "sharded": 2, "instances": 2, "overlap": 1, "bucket": 3000},
}
"""Those that keep gradients as shards, of which Muon has none."""
CASES: dict[str, dict[str, Any]] = {
    "decoupled rate": {"decoupled_lr": 1e-3, "decoupled_min_lr": 1e-4},
    "muon": {"optimizer": "muon", "muon_use_nesterov": True},
    "muon, qkv as one": {"optimizer": "muon", "muon_split_qkv": False, "muon_scale_mode": "unit_rms_norm"},
}
"""Settings of the optimizer."""
STEPS = 5
FEW = [
    ("decoupled rate", "tp2-dp2-sharded"),
    ("decoupled rate", "pp2"),
    ("muon", "tp2-dp2-sharded"),
    ("muon", "pp2-dp2-sharded"),
    ("muon", "tp2-sp"),
    ("muon, qkv as one", "dp4-instances"),
]
ALL = [(case, layout) for case in CASES for layout in LAYOUTS]


def config(model: str, layout: Layout, **optimizer: Any) -> Config:
    settings = harness.config(model, layout)
    return replace(settings, optimizer=replace(settings.optimizer, **optimizer))


def trained(mesh: ParallelMesh, settings: Config) -> tuple[list[float], list[Shard], list[Shard]]:
    """The losses of some steps in fp64, and the weights before and after them."""
    engine = harness.make(mesh, settings, torch.float64)
    before = [replace(shard, tensor=shard.tensor.clone()) for shard in engine.buffer.shards()]
    losses = [
        train_step(engine, harness.batch(mesh, settings, step), step=step, consumed_samples=step * GLOBAL_BATCH).loss
        for step in range(1, STEPS + 1)
    ]
    return losses, before, list(engine.buffer.shards())


@cache
def one_rank(model: str, case: str) -> tuple[list[float], dict[str, Tensor]]:
    losses, _, after = Pool().run(Grid(sizes={}), trained, config(model, {}, **CASES[case]))[0]
    return losses, harness.assemble([after])[0]


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize(("case", "layout"), FEW + [soak(*row) for row in ALL if row not in FEW])
def test_weights_are_those_of_one_rank(pool: Pool, model: str, case: str, layout: str) -> None:
    ranks = pool.run(harness.grid(LAYOUTS[layout]), trained, config(model, LAYOUTS[layout], **CASES[case]))
    losses, weights = one_rank(model, case)
    assert ranks[0][0] == pytest.approx(losses, rel=1e-10)
    found, complaints = harness.assemble([after for _, _, after in ranks])
    assert not complaints
    for name, weight in weights.items():
        assert harness.distance(found[name], weight) < 1e-9, name


def halves(mesh: ParallelMesh, settings: Config) -> list[float]:
    """Go on from --load, or start; the losses of three steps; save them if --save is given."""
    resumed = harness.resume(mesh, settings, torch.float64)
    engine, progress, losses = resumed.engine, resumed.progress, []
    for _ in range(3):
        step, samples = progress.iteration + 1, progress.schedule_samples
        losses.append(train_step(engine, harness.batch(mesh, settings, step), step=step, consumed_samples=samples).loss)
        progress.count(GLOBAL_BATCH, skipped=False)
    if settings.checkpoint.save:
        writer(engine, settings, NullTokenizer(VOCAB))(progress).result()
    return losses


@pytest.mark.parametrize(
    ("optimizer", "there", "here"),
    [
        ("muon", "tp2-dp2-sharded", "pp2"),
        ("muon", "pp2-dp2-sharded", "dp2-sharded"),
        ("adam", "dp2-grads", "pp2-dp2-sharded"),
        ("adam", "dp4-instances-grads", "tp2-dp2-grads-host"),
        soak("adam", "pp2", "dp4-instances"),
        soak("adam", "tp2-dp2-grads-host", "dp2-grads"),
        soak("adam", "pp2-dp2-instances", "dp4-instances-grads"),
        soak("sgd", "dp2-grads", "tp2-sp"),
    ],
)
def test_a_run_goes_on_in_any_other_layout(pool: Pool, tmp_path: Path, optimizer: str, there: str, here: str) -> None:
    layouts = LAYOUTS | GRADS

    def run(layout: Layout, **kept: str) -> list[float]:
        settings = replace(config("llama", layout, optimizer=optimizer), checkpoint=Checkpoint(**kept))
        losses: list[float] = pool.run(harness.grid(layout), halves, settings)[0]
        return losses

    first = run(layouts[there], save=str(tmp_path))
    second = run(layouts[here], load=str(tmp_path))
    assert first == pytest.approx(run({}, save=str(tmp_path / "one")), rel=1e-10)
    assert second == pytest.approx(run({}, load=str(tmp_path / "one")), rel=1e-10)


def held(mesh: ParallelMesh, settings: Config) -> tuple[int, int, int]:
    """The parameters of this rank, with padding, and the bytes of its states, as they are and as planned."""
    engine = harness.make(mesh, settings, torch.float32)
    states = [vector.nbytes for home in engine.optimizer.homes for vector in home.vectors.values()]
    return len(engine.buffer.params), sum(states), harness.plan_of(settings, mesh).states.moments


@pytest.mark.parametrize("sharded", [0, 1])
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_muon_keeps_one_state_for_a_matrix(pool: Pool, model: str, sharded: int) -> None:
    layout = {"dp": 2, "sharded": sharded}
    ranks = pool.run(harness.grid(layout), held, config(model, layout, optimizer="muon"))
    parameters, matrices = ranks[0][0], 2 * layer_matrices(model_size(harness.MODELS[model], vocab_size=VOCAB))
    assert [states for _, states, _ in ranks] == [planned for *_, planned in ranks]
    padding = 4 * (2 * parameters - matrices) - sum(states for _, states, _ in ranks) // (1 if sharded else 2)
    assert 0 <= padding <= 4 * 2 * ALIGNED, "some of it is behind matrices"


@pytest.mark.parametrize("layout", ["dp2-sharded", "pp2"])
@pytest.mark.parametrize(("model", "ends"), [("gpt2", 1), ("llama", 2)])
def test_word_embedding_and_output_layer_have_a_rate_of_their_own(
    pool: Pool, model: str, ends: int, layout: str
) -> None:
    """With rate 0 they stay; all else moves, positions too."""
    settings = config(model, LAYOUTS[layout], decoupled_lr=0.0)
    ranks = pool.run(harness.grid(LAYOUTS[layout]), trained, settings)
    before, after = (harness.assemble([rank[i] for rank in ranks])[0] for i in (1, 2))
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == {"embedding.word.weight", "head.weight"} & before.keys()
    assert len(still) == ends
