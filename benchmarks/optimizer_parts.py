"""What benchmarks/optimizer.py has other processes do."""

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from contestants import ALONE, LEARNING_RATE, WEIGHT_DECAY, config_of, engine_of, plain_model, sharded_by_torch
from plain import Sizes
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from workers import batch

from megalite.config.derive import derive
from megalite.config.offload import Offload
from megalite.config.parallel import Parallel
from megalite.grid import grid_of
from megalite.mesh import build_mesh
from megalite.observe.memory import peak_resident_bytes
from megalite.train.build import build
from megalite.train.memory_report import held_states


class Held(NamedTuple):
    """What a rank keeps between steps."""

    nbytes: int
    parameters: int
    """Of the whole model, with padding."""


def held_by(name: str, sizes: Sizes, rank: int, store: str) -> Held:
    """Parameters, gradients and optimizer states of one of two ranks, after a step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    try:
        if name.startswith("megalite"):
            parallel = Parallel(use_distributed_optimizer="sharded" in name)
            engine = engine_of(config_of(sizes, parallel), vocab=sizes.vocab, rank=rank, ranks=2)
            return Held(sum(held_states(engine).values()), len(engine.buffer.params))
        model: nn.Module = plain_model(sizes)
        count = sum(parameter.numel() for parameter in model.parameters())
        if name == "torch DDP":
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            model = sharded_by_torch(sizes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        tokens, _ = batch(sizes, 0, rank)
        model(tokens).square().mean().backward()
        optimizer.step()
        states = [s for state in optimizer.state.values() for s in state.values() if s.dim() > 0]
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        tensors = [t.to_local() if isinstance(t, DTensor) else t for t in (*model.parameters(), *grads, *states)]
        return Held(sum(tensor.nbytes for tensor in tensors), count)
    finally:
        dist.destroy_process_group()


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
