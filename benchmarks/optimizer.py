"""The optimizer beside others': its update, the reduction of gradients over two ranks, and offload to a disk.

    update     AdamW over all parameters of a GPT, beside torch's fused one and DeepSpeed's CPU Adam, if it is installed
    reduction  whole training steps of two ranks that share the optimizer's states, or gradients as well, beside DDP and
               FSDP2, with the bytes that a rank keeps, and the collectives of a step of --micro-batches, counted;
               DeepSpeed's first stages, which sum everywhere and slice, by their forms
    offload    states on the host's memory and on a disk: what a process keeps resident, and how fast the disk is used

Contestants take turns as in train_step.py, whose columns these are. The exit status is 1 where megalite is behind.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from contestants import ALONE, BETAS, EPS, LEARNING_RATE, WEIGHT_DECAY, config_of, engine_of
from optimizer_parts import Held, held_by, spilled
from plain import Sizes
from torch import nn
from train_step import AT_LEAST_AS_FAST, Heat, Spread, compare, markdown, race, sizes_of

from megalite.arith.memory import state_bytes

SHARDED, OVERLAPPED = "megalite DP, sharded", "megalite DP, sharded, overlapped"
GRADIENTS = "megalite DP, gradients sharded"
REDUCTION = Heat(
    title="2 ranks, 1 thread each",
    ranks=2,
    tokens=2,
    pairs=(
        *(
            (ours, theirs, AT_LEAST_AS_FAST)
            for ours in (SHARDED, OVERLAPPED)
            for theirs in ("torch DDP", "torch FSDP2")
        ),
        (GRADIENTS, "torch FSDP2", AT_LEAST_AS_FAST),
    ),
)
RACE = ("model", "setting", "megalite", "tokens/s", "rival", "tokens/s", "ratio", "limit", "")
UPDATE = ("threads", "megalite, ms", "rival", "its ms", "ratio", "limit", "")
KEPT = ("who", "bytes of a rank", "as computed", "collectives of a step", "sent by a rank, MiB")
OFFLOAD = ("states", "resident, GB", "less by, bytes a parameter", "update, s", "of the disk's raw rate")
Rows = list[tuple[str, ...]]


def main(arguments: list[str]) -> int:
    """Print the tables that are asked for."""
    options = parse(arguments)
    parts = {"update": update, "reduction": reduction, "offload": offload}
    behind, text = False, []
    for name in options.part:
        for rows in parts[name](options):
            for row in rows:
                print(" | ".join(row), flush=True)
            behind = behind or any(row[-1] == "behind" for row in rows)
            text.append(markdown(rows))
    if options.markdown:
        options.markdown.write_text("\n".join(text), encoding="utf-8")
    return int(behind)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("update", "reduction", "offload")
    parser.add_argument("--part", nargs="+", choices=names, default=list(names))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of each contestant in a round")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of the update")
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--num-attention-heads", type=int, default=8)
    parser.add_argument("--num-query-groups", type=int, help="of the Llama model; default: as many as heads")
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--micro-batches", type=int, default=4, help="of the step whose collectives are counted")
    parser.add_argument("--offload-layers", type=int, default=24, help="of the GPT with hidden size 1024 of offload")
    parser.add_argument("--dir", type=Path, help="folder on the disk to measure; default: a temporary one")
    parser.add_argument("--allocator", choices=("kept", "default"), default="kept", help="kept: freed memory stays")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a busy machine")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    options = parser.parse_args(arguments)
    if options.micro_batch_size % options.micro_batches:
        parser.error(f"--micro-batch-size must be a multiple of --micro-batches {options.micro_batches}")
    return options


def update(options: argparse.Namespace) -> Iterator[Rows]:
    """AdamW over the parameters of a GPT."""
    sizes = sizes_of(options, "gpt")
    field, parameters = contestants(sizes)
    ours = parameters.pop("megalite")
    rows: Rows = [UPDATE]
    for threads in options.threads:
        torch.set_num_threads(threads)
        times: dict[str, list[float]] = {name: [] for name in field}
        for number in range(options.rounds + 1):  # the first round only touches the memory
            order = list(field)[number % len(field) :] + list(field)[: number % len(field)]
            for name in order:
                seconds = [timed(field[name], options.clock) for _ in range(options.steps)]
                if number:
                    times[name].append(min(seconds))
        for theirs in list(field)[1:]:
            ratio = Spread.of([b / a for a, b in zip(times["megalite"], times[theirs], strict=True)])
            shown = [Spread.of([1000 * t for t in times[name]]).show(".2f") for name in ("megalite", theirs)]
            verdict = (
                "ahead" if ratio.low > 1 else "met" if ratio.median >= 1 else "tie" if ratio.high >= 1 else "behind"
            )
            rows.append((str(threads), shown[0], theirs, shown[1], ratio.show(".3f"), ">= 1.00", verdict))
    for name, theirs in parameters.items():
        off = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
        assert off < 1e-5, f"{name} does not compute what megalite does: {off}"
    yield rows


def timed(step: Callable[[], object], clock: str) -> float:
    now = time.perf_counter if clock == "wall" else time.process_time
    begin = now()
    step()
    return now() - begin


Field = tuple[dict[str, Callable[[], object]], dict[str, list[torch.Tensor]]]


def contestants(sizes: Sizes) -> Field:
    """The updates, by name, and the parameters that they work on: copies of one model's, with its gradients."""
    engine = engine_of(config_of(sizes, ALONE), vocab=sizes.vocab, rank=0, ranks=1)
    engine.buffer.grads.vector.normal_(generator=torch.Generator().manual_seed(0))

    def copies() -> list[nn.Parameter]:
        found = []
        for slot in engine.buffer.slots:
            found.append(nn.Parameter(slot.parameter.detach().clone()))
            found[-1].grad = engine.buffer.grads.vector[slot.range].view_as(found[-1]).clone()
        return found

    def groups(parameters: list[nn.Parameter]) -> list[dict[str, object]]:
        decayed = [slot.kind.treatment.decayed for slot in engine.buffer.slots]
        return [
            {"params": [p for p, is_decayed in zip(parameters, decayed, strict=True) if is_decayed is wanted]}
            | {"weight_decay": WEIGHT_DECAY * wanted}
            for wanted in (True, False)
        ]

    parameters = {"megalite": [slot.parameter for slot in engine.buffer.slots], "torch fused AdamW": copies()}
    how = {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPS}
    fused = torch.optim.AdamW(groups(parameters["torch fused AdamW"]), fused=True, **how)
    steps: dict[str, Callable[[], object]] = {
        "megalite": lambda: engine.optimizer.step(
            lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, decoupled_lr=LEARNING_RATE
        ),
        "torch fused AdamW": fused.step,
    }
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        parameters["DeepSpeed CPU Adam"] = copies()
        theirs = DeepSpeedCPUAdam(groups(parameters["DeepSpeed CPU Adam"]), **how)
        steps["DeepSpeed CPU Adam"] = theirs.step
    except (ImportError, RuntimeError) as error:
        parameters.pop("DeepSpeed CPU Adam", None)
        print(f"DeepSpeed CPU Adam is left out: {error}", file=sys.stderr)
    return steps, {name: [p.detach() for p in found] for name, found in parameters.items()}


def reduction(options: argparse.Namespace) -> Iterator[Rows]:
    """Training steps of two ranks; then what a rank keeps and sends."""
    sizes = sizes_of(options, "gpt")
    times = race(REDUCTION, sizes, options)
    yield [RACE, *(("gpt", *row) for row in compare(REDUCTION, sizes, times, options.clock))]
    yield [KEPT, *kept(sizes, options.micro_batches)]


def kept(sizes: Sizes, micro_batches: int) -> Iterator[tuple[str, ...]]:
    """Each contestant after a step of so many micro-batches, and DeepSpeed by the closed forms."""
    shards = {"megalite DP": (1, 1), SHARDED: (2, 1), GRADIENTS: (2, 2), "torch DDP": (1, 1), "torch FSDP2": (2, 2)}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        for name, (states, grads) in shards.items():
            store = str(Path(folder) / name.replace(" ", "-"))
            arguments = [[name] * 2, [sizes] * 2, range(2), [store] * 2, [micro_batches] * 2]
            held: Held = max(pool.map(held_by, *arguments))
            forms = state_bytes(held.parameters, param_bytes=4, moments=2, shards=states, grad_shards=grads).total
            if name == "torch FSDP2":  # its parameters are in parts, too
                forms -= 4 * held.parameters // 2
            calls = ", ".join(f"{count} x {verb}" for verb, count in held.calls.items()).replace("_", "-")
            yield (name, f"{held.nbytes:,}", f"{forms + held.lent:,}", calls, ring(held.sent))
    for stage, sums in ((1, 1), (2, micro_batches)):
        forms = state_bytes(held.parameters, param_bytes=4, moments=2, shards=2, grad_shards=stage).total
        nbytes = {"all_reduce": sums * 4 * held.parameters, "all_gather": 4 * held.parameters}
        yield (
            f"DeepSpeed ZeRO {stage}",
            "",
            f"{forms:,}",
            f"{sums} x all-reduce, 1 x all-gather a bucket",
            ring(nbytes),
        )


def ring(payload: dict[str, int], ranks: int = 2) -> str:
    """What a rank sends for collectives over so many bytes, as rings and trees of all kinds do at best."""
    passes = {"all_reduce": 2}
    parts = {verb: passes.get(verb, 1) * (ranks - 1) / ranks * n / 2**20 for verb, n in payload.items()}
    return " + ".join(f"{verb.replace('_', '-')} {part:.1f}" for verb, part in parts.items())


def offload(options: argparse.Namespace) -> Iterator[Rows]:
    """Updates of bf16 parameters, in a process for each place of the states."""
    rows: Rows = [OFFLOAD]
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        found = {}
        for where in ("device", "disk"):
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                found[where] = pool.submit(spilled, where, options.offload_layers, folder, options.steps).result()
        raw = raw_rate(Path(folder) / "raw", 12 * found["disk"].parameters)
    for where, (parameters, peak, seconds) in found.items():
        less = (found["device"].peak - peak) / parameters
        rate = 2 * 12 * parameters / statistics.median(seconds)
        shown = f"{rate / raw:.2f} ({rate / 1e9:.2f} of {raw / 1e9:.2f} GB/s)" if where == "disk" else ""
        rows.append((where, f"{peak / 1e9:.2f}", f"{less:.2f}", Spread.of(seconds).show(".2f"), shown))
    yield rows


def raw_rate(path: Path, nbytes: int, chunk: int = 4 << 20) -> float:
    """Bytes a second, read and written, of a file whose chunks are read and written back as the update does it."""
    data = bytearray(chunk)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, nbytes)
    rates = []
    for _ in range(2):
        begin = time.perf_counter()
        for place in range(0, nbytes - chunk + 1, chunk):
            os.preadv(fd, [data], place)
            os.pwrite(fd, data, place)
        rates.append(2 * nbytes / (time.perf_counter() - begin))
    os.close(fd)
    return max(rates)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
