"""Ops of the model on the CPU, forward and backward: as one writes them in torch, pure torch here, and our kernels.

They take turns in each round, so that what else the machine does falls on all alike. Shown are medians of the thread's
CPU time in ms, and the median over rounds of how many times faster the kernels are than torch.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from megalite.mesh import Group
from megalite.ops.activation import swiglu
from megalite.ops.norm import rms_norm
from megalite.ops.registry import Kernels
from megalite.ops.table import OPS
from megalite.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megalite.tensor_parallel.embedding import VocabShard
from megalite.tensor_parallel.layout import TensorParallel

ALONE = Group(name="tp", ranks=(0,), rank=0)


def rms(x: Tensor, weight: Tensor, kernels: Kernels | None) -> Tensor:
    if kernels is None:
        return F.rms_norm(x, weight.shape, weight, 1e-5)
    return rms_norm(x, weight, eps=1e-5, origin=0.0, kernels=kernels)


def gated(x: Tensor, kernels: Kernels | None) -> Tensor:
    if kernels is None:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    return swiglu(x, kernels=kernels)


def entropy(logits: Tensor, target: Tensor, kernels: Kernels | None) -> Tensor:
    # Copied for all, as our backward overwrites them.
    logits = logits * 1
    if kernels is None:
        return F.cross_entropy(logits, target, reduction="none")
    shard = VocabShard(logits.shape[1], logits.shape[1], TensorParallel(ALONE))
    return vocab_parallel_cross_entropy(logits[:, None], target[:, None], shard=shard, tp=ALONE, kernels=kernels)


def cases(dtype: torch.dtype) -> dict[str, Callable[[Kernels | None], Tensor]]:
    """By name and size, what computes it by given kernels, or as one writes it in torch."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype).requires_grad_()

    found: dict[str, Callable[[Kernels | None], Tensor]] = {}
    for rows, cols in ((2048, 256), (2048, 1024)):
        found[f"RMSNorm {rows} x {cols}"] = partial(rms, random(rows, cols), random(cols))
    for rows, cols in ((1024, 704), (2048, 2816)):
        found[f"SwiGLU {rows} x {cols}"] = partial(gated, random(rows, 2 * cols))
    for rows, cols in ((2048, 512), (1024, 8192), (512, 32000)):
        target = torch.randint(0, cols, (rows,))
        found[f"cross entropy {rows} x {cols}"] = partial(entropy, random(rows, cols), target)
    return found


def clocked(call: Callable[[Kernels | None], Tensor], kernels: Kernels | None) -> float:
    """ms of this thread for forward and backward."""
    start = time.thread_time()
    y = call(kernels)
    y.backward(torch.ones_like(y))
    return 1e3 * (time.thread_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ways = {"torch": None, "pure torch here": Kernels("reference", "cpu", OPS), "kernels": Kernels("auto", "cpu", OPS)}
    print("| op | " + " | ".join(ways) + " | kernels beside torch |\n" + "| --- " * (len(ways) + 2) + "|")
    for name, call in cases(getattr(torch, given.dtype)).items():
        rounds = [{way: clocked(call, kernels) for way, kernels in ways.items()} for _ in range(given.rounds + 1)][1:]
        medians = [f"{statistics.median(times[way] for times in rounds):.2f}" for way in ways]
        gain = statistics.median(times["torch"] / times["kernels"] for times in rounds)
        print(f"| {name} | {' | '.join(medians)} | {gain:.2f} |")


if __name__ == "__main__":
    main()
