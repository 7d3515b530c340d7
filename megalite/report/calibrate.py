"""Measure this machine for the planner: products, copies, and collectives of all ranks of the launch.

`python -m torch.distributed.run --standalone --nproc-per-node 2 -m megalite.report.calibrate profile.json`
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from megalite.comm.collectives import all_gather_object, all_reduce
from megalite.config.parallel import Parallel
from megalite.device import backend_for, pick, set_up_cpu, synchronize
from megalite.environment import launch
from megalite.grid import grid_of
from megalite.mesh import Group, start, stop
from megalite.plan.hardware import Device
from megalite.plan.profile import Profile, save_profile
from megalite.plan.rates import Rates

LARGE, SMALL = 1024, 128
"""Of the products from which the rate, and the loss of small ones, is worked out; on a GPU eight times as large."""
BYTES = 1 << 24
TURNS = 9
KERNELS_OF_A_LAYER = 24
"""So many small kernels a pass through a layer launches."""


def main(arguments: list[str]) -> int:
    """Measure, and let rank 0 write the profile."""
    here = launch()
    device = pick("auto", here.local_rank)
    if device.type == "cpu":
        set_up_cpu(1)
    grid = grid_of(Parallel(), here.world_size)
    backend = backend_for(device, "auto")
    mesh = start(grid, launch=here, backend=backend, timeout_minutes=5, device=device)
    profile = measure(device, mesh.world)
    if here.rank == 0:
        save_profile(Path(arguments[0]), profile)
        print(f"The profile is in {arguments[0]}")
    stop()
    return 0


def measure(device: torch.device, world: Group) -> Profile:
    """Every rank measures at the same time, as in a training; the slowest counts."""
    wide = 8 if device.type == "cuda" else 1
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    large = _slowest(_product(LARGE * wide, device, dtype), world)
    small = _slowest(_product(SMALL * wide, device, dtype), world)
    copy = _slowest(_timed(_copier(device), device), world)
    tiny = _slowest(_timed(_adder(device), device), world)
    rate, slow = 2 * (LARGE * wide) ** 3 / large, 2 * (SMALL * wide) ** 3 / small
    # A share n / (n + edge) of the rate at both sizes gives the edge.
    edge = max(1.0, (rate - slow) / max(slow / (SMALL * wide) - rate / (LARGE * wide), 1e-9))
    bandwidth = 2 * BYTES / copy
    link, wait = _link(device, world)
    return Profile(
        device=Device(
            name=device.type,
            peak=rate * (1 + edge / (LARGE * wide)),
            matmul=rate * (1 + edge / (LARGE * wide)),
            memory=_memory(device),
            bandwidth=bandwidth,
            intra=link,
            pcie=bandwidth,
            network=link,
            units=1,
        ),
        rates=Rates(
            matmul=1.0,
            edge=edge,
            attention=0.5,
            memory=1.0,
            host=KERNELS_OF_A_LAYER * tiny,
            intra=1.0,
            intra_wait=wait,
            inter=1.0,
            inter_wait=wait,
            step=2e-3,
            origin="calibrated here",
        ),
    )


def _link(device: torch.device, world: Group) -> tuple[float, float]:
    """Bytes a second and seconds of half an all-reduce: as the planner counts a gather."""
    if world.size == 1:
        return 1e12, 1e-6
    big, little = (torch.zeros(n, device=device) for n in (BYTES // 4, 16))
    wait = _slowest(_timed(lambda: all_reduce(little, world), device), world) / 2
    half = _slowest(_timed(lambda: all_reduce(big, world), device), world) / 2
    return BYTES * (world.size - 1) / world.size / max(half - wait, 1e-9), wait


def _product(size: int, device: torch.device, dtype: torch.dtype) -> float:
    one = torch.randn(size, size, device=device, dtype=dtype)
    return _timed(lambda: one @ one, device)


def _copier(device: torch.device) -> Callable[[], object]:
    source, target = (torch.zeros(BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    return lambda: target.copy_(source)


def _adder(device: torch.device) -> Callable[[], object]:
    one = torch.zeros(16, device=device)
    return lambda: one.add_(1)


def _timed(act: Callable[[], object], device: torch.device) -> float:
    """Seconds, the median of a few turns after one to warm up."""
    act()
    times = []
    for _ in range(TURNS):
        synchronize(device)
        began = time.perf_counter()
        act()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return median(times)


def _slowest(seconds: float, world: Group) -> float:
    return max(all_gather_object(seconds, world))


def _memory(device: torch.device) -> float:
    """Of a host, what one of its processes may use is not known: a large number."""
    return 80e9 if device.type == "cuda" else 16e9


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
