"""Recomputation: bit-equal gradients, as many forwards as said, and every kept tensor a term of the closed form."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from megalite.arith.memory import Keeping, layer_activations, region_activations
from megalite.arith.traffic import Again, tensor_parallel_traffic
from megalite.config.memory import Memory, recomputed_modules
from megalite.config.schema import Config
from megalite.config.size import model_size
from megalite.mesh import ParallelMesh
from megalite.model import recompute
from megalite.model.context import Context
from megalite.model.layer import Layer
from megalite.ops.dropout import Draw
from megalite.ops.rotary import rotary_angles
from megalite.shard import Shard
from megalite.train.step import evaluate, forward_backward
from tests.parallel import harness
from tests.parallel.harness import GLOBAL_BATCH, VOCAB, Layout, soak
from tests.pool import Pool

WAYS: dict[str, Memory] = {
    "core": Memory(recompute_granularity="selective"),
    "mlp": Memory(recompute_granularity="selective", recompute_modules=("mlp",)),
    "norms": Memory(recompute_granularity="selective", recompute_modules=("layernorm",)),
    "all modules": Memory(recompute_granularity="selective", recompute_modules=("core_attn", "layernorm", "mlp")),
    "full": Memory(recompute_granularity="full"),
    "groups": Memory(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=2),
    "block": Memory(recompute_granularity="full", recompute_method="block", recompute_num_layers=1),
}
DISTRIBUTED = {
    "distributed": Memory(recompute_granularity="full", distribute_saved_activations=True),
    "distributed groups": Memory(
        recompute_granularity="full", recompute_num_layers=2, distribute_saved_activations=True
    ),
}
LAYOUTS: dict[str, Layout] = {
    "one": {},
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sp": 1},
    "pp2": {"pp": 2},
    "zb-h1": {"pp": 2, "schedule": "zb-h1"},
    "zb-v": {"pp": 2, "schedule": "zb-v"},
    "tp2-sp-zb-h1": {"tp": 2, "sp": 1, "pp": 2, "schedule": "zb-h1"},
}
LAYERS = 5
"""Groups of two do not divide them, nor do stages."""


def settings(model: str, layout: str, way: Memory, *, dropout: float = 0.1, layers: int = LAYERS) -> Config:
    config = harness.config(model, LAYOUTS[layout], dropout=dropout, num_layers=layers, micro_batch_size=2)
    return replace(config, memory=way)


def gradients(pool: Pool, config: Config, layout: str) -> list[tuple[float, list[Shard]]]:
    return pool.run(harness.grid(LAYOUTS[layout]), harness.gradients, config, torch.float32)


CASES = [(model, layout, way) for model in ("gpt2", "llama") for layout in LAYOUTS for way in WAYS]
CASES += [(model, "tp2", way) for model in ("gpt2", "llama") for way in DISTRIBUTED]
ALWAYS = [("zb-h1", "full"), ("zb-h1", "all modules"), ("tp2-sp", "full"), *(("tp2", way) for way in DISTRIBUTED)]
FEW = [case for i, case in enumerate(CASES) if i % 4 == 0 or case[1:] in ALWAYS]
FEW += [(model, "one", "all modules") for model in ("qk norm", "sinks", "post norm residual", "quick geglu", "1p rms")]


@pytest.mark.parametrize(("model", "layout", "way"), FEW + [soak(*case) for case in CASES if case not in FEW])
def test_gradients_are_bit_equal(pool: Pool, model: str, layout: str, way: str) -> None:
    plain, again = (
        gradients(pool, settings(model, layout, memory), layout) for memory in (Memory(), (WAYS | DISTRIBUTED)[way])
    )
    for (loss, shards), (found_loss, found) in zip(plain, again, strict=True):
        assert found_loss == loss
        assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(shards, found, strict=True))


@pytest.mark.parametrize("way", ["core", "full"])
def test_a_kernel_that_asks_for_gradients_is_chosen_alike(pool: Pool, way: str) -> None:
    """Attention in blocks is taken in training alone, and rounds otherwise than what is taken without gradients."""
    plain, again = (
        gradients(pool, settings("long enough for blocks", "one", memory, dropout=0.0, layers=2), "one")
        for memory in (Memory(), WAYS[way])
    )
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(plain[0][1], again[0][1], strict=True))


@contextmanager
def counted(counts: Counter[str], name: str) -> Iterator[None]:
    """Counts the forwards of layers, those that keep something apart."""
    forward = Layer.forward

    def counting(self: Layer, x: Tensor, context: Context) -> Tensor:
        counts[name + ", keeping" * torch.is_grad_enabled()] += 1
        return forward(self, x, context)

    with patch.object(Layer, "forward", counting):
        yield


def forwards(mesh: ParallelMesh, config: Config) -> Counter[str]:
    engine, counts = harness.make(mesh, config, torch.float32), Counter[str]()
    with counted(counts, "training"):
        forward_backward(engine, harness.batch(mesh, config, 0), step=1)
    with counted(counts, "evaluation"):
        evaluate(engine, harness.batch(mesh, config, 0))
    return counts


# Of five layers, pp 2 has three in the first stage and two in the second: each stage has its own first.
@pytest.mark.parametrize(
    ("layout", "way", "layers"),
    [("one", "full", 10), ("one", "groups", 10), ("one", "block", 6), ("zb-h1", "full", 10), ("zb-h1", "block", 7)]
    + [("one", "all modules", 5), ("one", "none", 5)],
)
def test_number_of_layer_forwards(pool: Pool, layout: str, way: str, layers: int) -> None:
    config = settings("gpt2", layout, {**WAYS, "none": Memory()}[way])
    counts = sum(pool.run(harness.grid(LAYOUTS[layout]), forwards, config), Counter[str]())
    m = GLOBAL_BATCH // 2
    assert counts == {"training, keeping": m * layers, "evaluation": m * LAYERS}


def sent(mesh: ParallelMesh, config: Config) -> dict[str, tuple[int, int]]:
    forward_backward(harness.make(mesh, config, torch.float32), harness.batch(mesh, config, 0), step=1)
    return {name: (mesh.tp.traffic.calls[name], mesh.tp.traffic.bytes[name]) for name in mesh.tp.traffic.calls}


AGAIN = {"core": 0, "norms": 0, "mlp": LAYERS, "all modules": LAYERS, "full": 2 * LAYERS, "groups": 2 * LAYERS}
AGAIN |= {"block": 2, "distributed": 2 * LAYERS, "distributed groups": 2 * LAYERS}
GATHERED = {"distributed": LAYERS, "distributed groups": 3}


@pytest.mark.parametrize(
    ("layout", "way"), [("tp2", way) for way in [*WAYS, *DISTRIBUTED]] + [("tp2-sp", way) for way in WAYS]
)
def test_traffic(pool: Pool, layout: str, way: str) -> None:
    """Full recomputation: 6 all-reduces a layer; with sequence parallelism two more all-gathers and reduce-scatters."""
    config = settings("gpt2", layout, (WAYS | DISTRIBUTED)[way])
    expected = tensor_parallel_traffic(
        model_size(config.model, vocab_size=VOCAB),
        None,
        Again(blocks=AGAIN[way], inputs=GATHERED.get(way, 0), input_bytes=4),
        tensor_parallel_size=2,
        sequence_parallel=config.parallel.sequence_parallel,
        micro_batch_size=2,
        num_micro_batches=GLOBAL_BATCH // 2,
        param_bytes=4,
    )
    for found in pool.run(harness.grid(LAYOUTS[layout]), sent, config):
        assert found == {name: (s.calls, s.nbytes) for name, s in expected.items()}


def kept(mesh: ParallelMesh, config: Config, dtype: torch.dtype) -> list[int]:
    """Bytes of each storage that the first block keeps, but for parameters and what all layers share."""
    engine = harness.make(mesh, config, dtype)
    [model], m = engine.stages.values(), harness.batch(mesh, config, 0)[0]
    context = Context(position_ids=m.position_ids, draw=Draw(seed=1, step=1, samples=m.sample_ids))
    shared = list(model.parameters())
    if model.rotary is not None:
        context = replace(context, angles=rotary_angles(model.rotary, m.position_ids))
        shared += context.angles or ()
    x = torch.randn_like(model.empty_hidden(*m.tokens.shape)).requires_grad_()
    apart, found = {tensor.untyped_storage().data_ptr() for tensor in shared}, dict[int, Tensor]()

    def noting(pack: Callable[[Tensor], object], unpack: Callable[[Any], Tensor]) -> saved_tensors_hooks:
        def note(tensor: Tensor) -> object:
            packed = pack(tensor)
            if isinstance(packed, Tensor):
                found.setdefault(packed.untyped_storage().data_ptr(), packed)
            return packed

        return saved_tensors_hooks(note, unpack)

    # Hooks within hooks take their place: those of the model are listened to as well.
    with noting(lambda tensor: tensor, lambda tensor: tensor), patch.object(recompute, "saved_tensors_hooks", noting):
        y = model.blocks[0](x, context)
    del y
    return [t.untyped_storage().nbytes() for place, t in found.items() if place not in apart]


def how(config: Config, core: str, nbytes: int) -> Keeping:
    return Keeping(
        micro_batch_size=2,
        param_bytes=nbytes,
        hidden_bytes=nbytes,
        tensor_parallel_size=config.parallel.tensor_model_parallel_size,
        sequence_parallel=config.parallel.sequence_parallel,
        core=core,  # type: ignore[arg-type]
        dropout=config.model.hidden_dropout > 0,
        recomputed=recomputed_modules(config.memory),
        distributed=config.memory.distribute_saved_activations,
    )


ALL = WAYS | {"none": Memory()}
CORES = {"fused": 0.0, "dropout": 0.1}
TERMS = [
    (model, layout, way, core)
    for model in ("gpt2", "llama")
    for layout in ("one", "tp2", "tp2-sp")
    for way in ALL
    for core in CORES
]
TERMS += [(model, "tp2-sp", "none", "fused") for model in ("qk norm", "qk layer norm", "squared relu", "quick geglu")]
TERMS += [("long enough for blocks", layout, "none", "blocked") for layout in ("one", "tp2")]
TERMS += [("qk layer scaling", "one", "none", "softmax"), ("grouped", "tp2", "none", "dropout")]
TERMS += [("gpt2", "tp2", way, "dropout") for way in DISTRIBUTED]
harness.MODELS["grouped"] = replace(harness.MODELS["gpt2"], group_query_attention=True, num_query_groups=2)


@pytest.mark.parametrize(("model", "layout", "way", "core"), TERMS)
def test_what_a_layer_keeps_is_what_the_formula_names(pool: Pool, model: str, layout: str, way: str, core: str) -> None:
    config = settings(model, layout, (ALL | DISTRIBUTED)[way], dropout=CORES.get(core, 0.0), layers=2)
    asked, size = how(config, core, 4), model_size(config.model, vocab_size=VOCAB)
    full = config.memory.recompute_granularity == "full"
    terms = region_activations(size, asked) if full else layer_activations(size, asked)
    for found in pool.run(harness.grid(LAYOUTS[layout]), kept, config, torch.float32):
        assert Counter(found) == Counter(terms.values()), f"{sorted(found)} instead of {terms}"


@pytest.mark.parametrize("core", CORES)
def test_in_16_bits(pool: Pool, core: str) -> None:
    """34 sbh + 5 a s^2 b, but that a CPU keeps the statistics of norms in bf16, too."""
    config = replace(settings("gpt2", "one", Memory(), dropout=CORES[core], layers=2))
    config = replace(config, train=replace(config.train, bf16=True))
    terms = layer_activations(model_size(config.model, vocab_size=VOCAB), how(config, core, 2))
    [found] = pool.run(harness.grid({}), kept, config, torch.bfloat16)
    statistics = [nbytes for name, nbytes in terms.items() if name.startswith(("mean", "deviation"))]
    assert sum(found) == sum(terms.values()) - sum(statistics) // 2
