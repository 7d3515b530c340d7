"""What benchmarks/optimizer.py has other processes do."""

import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from contestants import (
    ALONE,
    GRADIENTS,
    LEARNING_RATE,
    SHARDED,
    WEIGHT_DECAY,
    config_of,
    engine_of,
    plain_model,
    sharded_by_torch,
    step_of,
)
from plain import Sizes
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from workers import batch

from megalite.config.derive import derive
from megalite.config.offload import Offload
from megalite.grid import grid_of
from megalite.mesh import build_mesh
from megalite.observe.memory import peak_resident_bytes
from megalite.train.build import build
from megalite.train.memory_report import held_states


class Held(NamedTuple):
    """What a rank keeps between steps, and has sent in one."""

    nbytes: int
    parameters: int
    """Of the whole model, with padding."""
    lent: int
    """Bytes of buckets that are used again, counted in `nbytes`."""
    calls: dict[str, int]
    sent: dict[str, int]
    """Bytes of each collective's whole tensors."""


def held_by(name: str, sizes: Sizes, rank: int, store: str, micro_batches: int) -> Held:
    """Parameters, gradients and optimizer states of one of two ranks, after a step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    try:
        tokens, labels = batch(sizes, 0, rank)
        if name.startswith("megalite"):
            parallel = {"megalite DP": ALONE, "megalite DP, sharded": SHARDED}.get(name, GRADIENTS)
            config = config_of(sizes, parallel, micro_batches=micro_batches)
            engine = engine_of(config, vocab=sizes.vocab, rank=rank, ranks=2)
            step_of(engine, sizes, micro_batches=micro_batches)(tokens, labels)
            traffic, lent = engine.mesh.dp.traffic, engine.buffer.grads.lent
            nbytes = sum(held_states(engine).values()) + lent
            return Held(nbytes, len(engine.buffer.params), lent, dict(traffic.calls), dict(traffic.bytes))
        model: nn.Module = plain_model(sizes)
        count = sum(parameter.numel() for parameter in model.parameters())
        if name == "torch DDP":
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            model = sharded_by_torch(sizes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        with Collectives() as counted:
            # As each has it: DDP sums with the last micro-batch, FSDP2 with each, as its gradients are kept in parts.
            parts = tokens.chunk(micro_batches)
            for number, part in enumerate(parts):
                last = number == len(parts) - 1
                with nullcontext() if last or name != "torch DDP" else model.no_sync():
                    model(part).square().mean().backward()
            optimizer.step()
        states = [s for state in optimizer.state.values() for s in state.values() if s.dim() > 0]
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        tensors = [t.to_local() if isinstance(t, DTensor) else t for t in (*model.parameters(), *grads, *states)]
        often = {"all_reduce": 1, "all_gather": micro_batches, "reduce_scatter": micro_batches}
        sent = {verb: often[verb] * 4 * count for verb in counted.calls}
        return Held(sum(tensor.nbytes for tensor in tensors), count, 0, dict(counted.calls), sent)
    finally:
        dist.destroy_process_group()


class Collectives(TorchDispatchMode):
    """Counts those that torch starts while the context lasts."""

    VERBS: ClassVar = {
        "c10d::allreduce_": "all_reduce",
        "c10d::_allgather_base_": "all_gather",
        "c10d::_reduce_scatter_base_": "reduce_scatter",
    }

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if verb := self.VERBS.get(func.name()):
            self.calls[verb] += 1
        return func(*args, **(kwargs or {}))


class Spilled(NamedTuple):
    """What a process needed whose optimizer made some updates."""

    parameters: int
    peak: int
    """Bytes resident at most in the updates."""
    seconds: list[float]
    """Of each update."""


def spilled(where: str, layers: int, folder: str, steps: int) -> Spilled:
    """Updates of a GPT in bf16 with its states on the device or on a disk."""
    torch.set_num_threads(1)
    sizes = Sizes(
        family="gpt", layers=layers, hidden=1024, heads=16, groups=16, ffn=4096, sequence=128, vocab=1024, micro_batch=1
    )
    away = Offload(optimizer_cpu_offload=True, optimizer_offload_device="disk", offload_dir=folder)
    config = replace(config_of(sizes, ALONE), offload=away if where == "disk" else Offload())
    mesh = build_mesh(grid_of(ALONE, 1), rank=0, device=torch.device("cpu"), timeout=timedelta(minutes=5))
    engine = build(config, derive(config, 1), vocab_size=sizes.vocab, mesh=mesh, dtype=torch.bfloat16)
    engine.buffer.grads.vector.fill_(1e-3)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here: building held parameters twice
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        engine.optimizer.step(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, decoupled_lr=LEARNING_RATE)
        seconds.append(time.perf_counter() - begin)
    return Spilled(len(engine.buffer.params), peak_resident_bytes(), seconds)
