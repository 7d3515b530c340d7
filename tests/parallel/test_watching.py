"""What a run notices of itself: numbers that are not finite, replicas that differ; and sums in the order of ranks."""

import re
from dataclasses import replace

import pytest
import torch

from megalite.config.schema import Config
from megalite.mesh import ParallelMesh
from megalite.shard import Shard
from megalite.train.replicas import check_replicas
from megalite.train.step import forward_backward, train_step
from tests.parallel import harness
from tests.parallel.harness import Layout
from tests.pool import Pool

LAYOUTS: dict[str, Layout] = {
    "one": {},
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sp": 1},
    "dp2": {"dp": 2},
    "tp2-sp-dp2": {"tp": 2, "sp": 1, "dp": 2},
    "pp2": {"pp": 2},
    "tp2-pp2": {"tp": 2, "pp": 2},
    "dp2-sharded": {"dp": 2, "sharded": 1, "gather": 1},
}


def spoil(mesh: ParallelMesh, settings: Config, name: str, ranks: tuple[int, ...]) -> tuple[str, bool]:
    """What a step says of a model one of whose weights is infinite, and whether it kept the weights."""
    engine = harness.make(mesh, settings, torch.float32)
    for slot in (slot for slot in engine.buffer.slots if slot.name == name and mesh.rank in ranks):
        slot.parameter.data.view(-1)[0] = torch.inf
    before = engine.buffer.params.clone()
    try:
        train_step(engine, harness.batch(mesh, settings, 1), step=1, consumed_samples=0)
    except FloatingPointError as error:
        return str(error), torch.equal(before, engine.buffer.params)
    return "", False


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("layers.0.mlp.fc1.weight", "layers.0.mlp.fc1"),
        ("layers.1.attention.qkv.weight", "layers.1.attention.qkv"),
        ("final_norm.weight", "final_norm"),
    ],
)
def test_the_first_bad_output_is_named(pool: Pool, layout: str, name: str, module: str) -> None:
    grid = harness.grid(LAYOUTS[layout])
    found = pool.run(grid, spoil, harness.config("gpt2", LAYOUTS[layout]), name, tuple(range(grid.world_size)))
    assert len({text for text, _ in found}) == 1, "ranks say different things"
    text, kept = found[0]
    first = 0 if name.startswith("layers.0") else grid.world_size - grid.world_size // grid.size("pp")
    said = rf"iteration 1: loss \S+, gradient norm \S+; the first output .* is that of {module} on rank {first}\."
    assert re.match(said, text)
    assert kept


def test_only_the_bad_rank_is_named(pool: Pool) -> None:
    text, _ = pool.run(
        harness.grid({"dp": 2}), spoil, harness.config("gpt2", {"dp": 2}), "layers.1.mlp.fc2.weight", (1,)
    )[0]
    assert "is that of layers.1.mlp.fc2 on rank 1." in text


def differ(mesh: ParallelMesh, settings: Config, name: str) -> str:
    """What is said of a weight of the last rank whose last bit is flipped."""
    engine = harness.make(mesh, settings, torch.float32)
    check_replicas(engine, "before")
    last = mesh.rank == mesh.world.size - 1
    for slot in (slot for slot in engine.buffer.slots if slot.name == name and last):
        slot.parameter.data.view(-1).view(torch.int32)[3] ^= 1
    try:
        check_replicas(engine, "iteration 7")
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("layout", "name", "words"),
    [
        ("dp2", "layers.1.mlp.fc2.weight", "data parallel"),
        ("dp2", "final_norm.bias", "data parallel"),
        ("tp2-sp-dp2", "layers.0.attention.qkv.weight", "data parallel"),
        ("tp2", "layers.0.mlp_norm.weight", "tensor parallel"),
        ("tp2-sp", "final_norm.bias", "tensor parallel"),
        ("tp2-pp2", "embedding.word.weight", "first and last pipeline"),
    ],
)
def test_one_bit_that_differs_is_found(pool: Pool, layout: str, name: str, words: str) -> None:
    said = pool.run(harness.grid(LAYOUTS[layout]), differ, harness.config("gpt2", LAYOUTS[layout]), name)
    assert set(said) == {said[0]}
    assert said[0].startswith(f"iteration 7: {words} ranks, which must hold the same weights, differ in {name}.")


def test_parts_of_a_layer_are_no_replicas(pool: Pool) -> None:
    settings = harness.config("gpt2", LAYOUTS["tp2"])
    assert pool.run(harness.grid(LAYOUTS["tp2"]), differ, settings, "layers.0.mlp.fc1.weight") == ["", ""]


def flat(mesh: ParallelMesh, settings: Config) -> list[Shard]:
    """What this rank owns of the gradients of a step in fp32."""
    engine = harness.make(mesh, settings, torch.float32)
    forward_backward(engine, harness.batch(mesh, settings, 0), step=1)
    return harness.grad_shards(engine)


def test_in_deterministic_mode_buckets_do_not_change_a_bit(pool: Pool) -> None:
    """Over four ranks, where gloo's own order of a sum depends on an element's place in its bucket."""
    layouts = [{"dp": 4}, {"dp": 4, "bucket": 1000}, {"dp": 4, "bucket": 4000, "overlap": 1}, {"dp": 4, "sharded": 1}]
    found = {}
    for deterministic in (True, False):
        for number, layout in enumerate(layouts):
            settings = harness.config("gpt2", layout)
            settings = replace(settings, train=replace(settings.train, deterministic_mode=deterministic))
            found[deterministic, number], _ = harness.assemble(pool.run(harness.grid(layout), flat, settings))
    equal = {
        mode: all(torch.equal(found[mode, 0][name], found[mode, n][name]) for n in (1, 2, 3) for name in found[mode, 0])
        for mode in (True, False)
    }
    assert equal == {True: True, False: False}
    for name, grad in found[True, 0].items():
        torch.testing.assert_close(grad, found[False, 0][name], rtol=1e-4, atol=1e-6)
