"""Pipeline parallelism: the loss, gradients and curves of one rank under every schedule, and what is sent and held."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import product
from unittest.mock import patch
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from megalite.comm.collectives import PeerLost, Pending
from megalite.config.schema import Config
from megalite.mesh import ParallelMesh, build_mesh, stop
from megalite.pipeline_parallel.mail import MOST_LEAVING
from megalite.schedule.action import Action, Op, Program, text
from megalite.schedule.check import peak_in_flight
from megalite.train.step import evaluate, forward_backward
from tests.parallel import harness
from tests.parallel.harness import Layout, soak
from tests.parallel.test_equality import CURVE_LIMIT, DTYPES, GRADIENT_LIMIT, ONE, Gradients, complaints
from tests.pool import Pool

SCHEDULES: dict[str, Layout] = {
    "gpipe": {"schedule": "gpipe"},
    "1f1b": {"schedule": "1f1b"},
    "interleaved": {"schedule": "interleaved", "v": 2},
    "interleaved-3": {"schedule": "interleaved", "v": 3},
    "zb-h1": {"schedule": "zb-h1"},
    "zb-v": {"schedule": "zb-v"},
}
MODELS = {"tied": "gpt2", "untied": "llama"}
WIDER: dict[str, Layout] = {
    "3d": {"tp": 2, "pp": 2, "dp": 2},
    "3d-sp": {"tp": 2, "pp": 2, "dp": 2, "sp": 1},
    "tp2-pp2": {"tp": 2, "pp": 2},
    "tp2-pp2-sp": {"tp": 2, "pp": 2, "sp": 1},
    "pp2-dp2": {"pp": 2, "dp": 2, "overlap": 1, "bucket": 4000},
    "dp2-pp2": {"pp": 2, "dp": 2, "pp-first": 1},
    "pp2-dp2-sharded": {"pp": 2, "dp": 2, "sharded": 1, "overlap": 1, "gather": 1, "bucket": 4000},
    "3d-sharded": {"tp": 2, "pp": 2, "dp": 2, "sharded": 1},
}
"""With more than one stage a rank, where the schedule has that."""


def stages(layout: Layout) -> int:
    return layout["pp"] * (2 if layout["schedule"] == "zb-v" else layout.get("v", 1))


@cache
def reference(model: str, layers: int, dtype: str, global_batch: int) -> Gradients:
    settings = harness.config(model, {}, dropout=0.1, num_layers=layers, global_batch_size=global_batch)
    return Pool().run(ONE, harness.gradients, settings, DTYPES[dtype])[0]


def check(pool: Pool, model: str, layout: Layout, *, uneven: bool = False, dtype: str = "fp64", batch: int = 8) -> None:
    layers = stages(layout) + uneven
    settings = harness.config(model, layout, dropout=0.1, num_layers=layers, global_batch_size=batch)
    results = pool.run(harness.grid(layout), harness.gradients, settings, DTYPES[dtype])
    assert not complaints(results, reference(model, layers, dtype, batch), GRADIENT_LIMIT[dtype])


EVERY = list(product(SCHEDULES, [2, 4], MODELS, DTYPES, ["even", "uneven"]))
HALF = [case for case in EVERY if case[3] == "fp64" and (case[2] == "tied") == (case[4] == "uneven")]


@pytest.mark.parametrize(
    ("schedule", "pp", "ends", "dtype", "split"), HALF + [soak(*case) for case in EVERY if case not in HALF]
)
def test_every_schedule(pool: Pool, schedule: str, pp: int, ends: str, dtype: str, split: str) -> None:
    check(pool, MODELS[ends], {"pp": pp, **SCHEDULES[schedule]}, uneven=split == "uneven", dtype=dtype)


@pytest.mark.parametrize(("pp", "batch"), [(2, 3), (4, 1), (4, 2), soak(2, 1), soak(4, 5)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_few_and_odd_micro_batches(pool: Pool, schedule: str, pp: int, batch: int) -> None:
    check(pool, "gpt2", {"pp": pp, **SCHEDULES[schedule]}, batch=batch)


NARROW = [
    ("1f1b", "3d", "tied"),
    ("zb-h1", "3d-sharded", "tied"),
    ("zb-v", "3d-sp", "tied"),
    ("interleaved", "3d", "untied"),
]
WIDE = list(product(SCHEDULES, WIDER, MODELS))
FEW = NARROW + [case for i, case in enumerate(WIDE) if not case[1].startswith("3d") and i % 3 == 0]


@pytest.mark.parametrize(("schedule", "layout", "ends"), FEW + [soak(*case) for case in WIDE if case not in FEW])
def test_beside_other_axes(pool: Pool, schedule: str, layout: str, ends: str) -> None:
    check(pool, MODELS[ends], {**WIDER[layout], **SCHEDULES[schedule]})


@pytest.mark.parametrize(
    ("pp", "asked", "layers"), [(4, "E|tt||tL", 3), (4, "Et|t*2|t|L", 4), (2, "E|t|tt|L", 3), (2, "E,(t|)*3,t,L", 4)]
)
def test_stages_as_laid_out(pool: Pool, pp: int, asked: str, layers: int) -> None:
    """Stages may be empty, and so may a rank."""
    layout = {"pp": pp, "layout": asked}
    settings = harness.config("gpt2", layout, dropout=0.1, num_layers=layers)
    results = pool.run(harness.grid(layout), harness.gradients, settings, torch.float64)
    assert not complaints(results, reference("gpt2", layers, "fp64", 8), 1e-10)


@pytest.mark.parametrize(
    ("schedule", "dtype", "optimizer"),
    [("1f1b", "fp64", "adam"), ("zb-v", "fp32", "sgd")]
    + [soak(s, "fp64", o) for s in SCHEDULES for o in ("adam", "sgd") if (s, o) != ("1f1b", "adam")],
)
def test_curves(pool: Pool, schedule: str, dtype: str, optimizer: str) -> None:
    layout = {"pp": 2, **SCHEDULES[schedule]}
    layers = stages(layout)
    curves = pool.run(harness.grid(layout), harness.curve, *_curve(layout, layers, dtype, optimizer))
    [alone] = Pool().run(ONE, harness.curve, *_curve({}, layers, dtype, optimizer))
    assert all(curve == curves[0] for curve in curves), "ranks disagree"
    found, expected = (torch.tensor(curve, dtype=torch.float64) for curve in (curves[0], alone))
    off = ((found - expected).abs() / expected).amax(0)
    assert (off <= torch.tensor(CURVE_LIMIT[dtype], dtype=torch.float64)).all(), f"loss and norm off by {off.tolist()}"


def _curve(layout: Layout, layers: int, dtype: str, optimizer: str) -> tuple[Config, torch.dtype, int]:
    return harness.config("gpt2", layout, optimizer=optimizer, num_layers=layers), DTYPES[dtype], 20


def both_losses(mesh: ParallelMesh, settings: Config) -> tuple[float, int]:
    return evaluate(harness.make(mesh, settings, torch.float64), harness.batch(mesh, settings, 0))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evaluation(pool: Pool, schedule: str) -> None:
    layout = {"pp": 2, **SCHEDULES[schedule]}
    found = pool.run(harness.grid(layout), both_losses, harness.config("llama", layout, num_layers=stages(layout)))
    [(loss, tokens)] = Pool().run(ONE, both_losses, harness.config("llama", {}, num_layers=stages(layout)))
    assert found == [(pytest.approx(loss, rel=1e-12), tokens)] * 2


@dataclass
class Seen:
    """What one rank did in one step."""

    program: str
    executed: str
    calls: dict[str, int]
    nbytes: dict[str, int]
    most_live: int
    most_deferred: int
    most_leaving: int
    proven: tuple[int, int]


def look_on(mesh: ParallelMesh, settings: Config) -> Seen:
    """Train one step, with an eye on each action."""
    done: list[Action] = []
    live, deferred, leaving = [0], [0], [0]
    sent_tensors: list[ReferenceType[Tensor]] = []

    @contextmanager
    def watch(action: Action) -> Iterator[None]:
        done.append(action)
        yield
        live.append(live[-1] + {Op.F: 1, Op.B: -1, Op.I: -1}.get(action.op, 0))
        deferred.append(deferred[-1] + {Op.I: 1, Op.W: -1}.get(action.op, 0))
        leaving.append(sum(tensor() is not None for tensor in sent_tensors))

    engine = replace(harness.make(mesh, settings, torch.float32), watch=watch)
    send = engine.mail.link.send

    def noted(x: Tensor, **where: int) -> Pending:
        sent_tensors.append(ref(x))
        return send(x, **where)

    engine.mail.link.send = noted  # type: ignore[method-assign]
    batch = harness.batch(mesh, settings, 0)
    forward_backward(engine, batch, step=1)
    program = engine.program(len(batch))
    sent = {"send", "recv"}
    return Seen(
        program=text([a for a in program if a.op not in MESSAGES]),
        executed=text(done),
        calls={verb: mesh.pp.traffic.calls[verb] for verb in sent},
        nbytes={verb: mesh.pp.traffic.bytes[verb] for verb in sent},
        most_live=max(live),
        most_deferred=max(deferred),
        most_leaving=max(leaving),
        proven=peak_in_flight(program),
    )


MESSAGES = {Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B}


@pytest.mark.parametrize("beside", [{}, {"tp": 2}, {"tp": 2, "sp": 1}], ids=["alone", "tp2", "tp2-sp"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_what_is_sent_and_held(pool: Pool, schedule: str, beside: Layout) -> None:
    """2m messages at the ends, 4m between, each of a micro-batch's activations; with tp, of a rank's share of them."""
    pp, m = (2 if beside else 4), 8
    layout = {"pp": pp, **beside, **SCHEDULES[schedule]}
    settings = harness.config("gpt2", layout, num_layers=pp)
    share = harness.SEQUENCE * settings.model.hidden_size * 4 // beside.get("tp", 1)
    for rank, seen in enumerate(pool.run(harness.grid(layout), look_on, settings)):
        stage = rank // beside.get("tp", 1)
        messages = m if stage in (0, pp - 1) else 2 * m
        assert seen.calls == {"send": messages, "recv": messages}
        assert seen.nbytes == {"send": messages * share, "recv": messages * share}
        assert seen.executed == seen.program
        assert (seen.most_live, seen.most_deferred) == seen.proven
        assert seen.most_leaving <= MOST_LEAVING < m
        if schedule == "1f1b":
            assert seen.most_live == min(m, pp - stage)


@pytest.mark.parametrize("schedule", ["interleaved", "interleaved-3", "zb-v"])
def test_what_is_held_with_several_stages(pool: Pool, schedule: str) -> None:
    layout = {"pp": 2, **SCHEDULES[schedule]}
    for seen in pool.run(harness.grid(layout), look_on, harness.config("llama", layout, num_layers=stages(layout))):
        assert seen.executed == seen.program
        assert (seen.most_live, seen.most_deferred) == seen.proven


def lose(mesh: ParallelMesh, settings: Config, how: str) -> tuple[str, float]:
    """What a rank is told, and after how many seconds, when the last rank fails it."""
    mesh = build_mesh(mesh.grid, rank=mesh.rank, device=mesh.device, timeout=timedelta(seconds=4))
    engine, batch = harness.make(mesh, settings, torch.float32), harness.batch(mesh, settings, 0)
    program = engine.program(len(batch))
    if mesh.pp.rank == mesh.pp.size - 1:
        program = FAILURES[how](program)
    started = time.monotonic()
    try:
        forward_backward(replace(engine, program=lambda count: program), batch, step=1)
    except (PeerLost, AssertionError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - started
    finally:
        if how == "dies":
            stop()
    return "", time.monotonic() - started


FAILURES: dict[str, Callable[[Program], Program]] = {
    "dies": lambda program: program[: len(program) // 2],
    "forgets a message": lambda program: [action for action in program if str(action) != "SEND_B1.3"],
}


def order_of_sums(mesh: ParallelMesh, settings: Config) -> list[str]:
    """The last actions of a step, and the buckets' sums between them."""
    engine, seen = harness.make(mesh, settings, torch.float32), list[str]()

    @contextmanager
    def watch(action: Action) -> Iterator[None]:
        seen.append(str(action))
        yield

    start = engine.buffer.policy.start_sum
    batch = harness.batch(mesh, settings, 0)
    with patch.object(engine.buffer.policy, "start_sum", lambda grads: (seen.append("sum"), start(grads))[1]):
        forward_backward(replace(engine, watch=watch), batch, step=1)
    return seen


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_sums_overlap_the_last_backward(pool: Pool, schedule: str) -> None:
    """Buckets leave before the stage is closed, whether its last gradients come from a backward or of weights alone."""
    layout = {"pp": 2, "dp": 2, "overlap": 1, "bucket": 1000, **SCHEDULES[schedule]}
    for seen in pool.run(harness.grid(layout), order_of_sums, harness.config("llama", layout)):
        closed = next(place for place, what in enumerate(seen) if what.startswith("GRAD_SYNC"))
        assert seen[:closed].count("sum") > 2


@pytest.mark.parametrize("how", FAILURES)
def test_a_lost_stage_ends_the_step(pool: Pool, how: str) -> None:
    """Within seconds, with the rank, the action, and what it waited for."""
    layout = {"pp": 2, "schedule": "1f1b"}
    (said, seconds), _ = pool.run(harness.grid(layout), lose, harness.config("gpt2", layout), how)
    words = r"PeerLost: pipeline rank 0 waited in B0\.\d for the gradient of stage 1's input, from pipeline rank 1: "
    assert re.match(words, said), said
    assert seconds < 20
