"""Every layout of a job that can run, the fastest that fits, and why the others are worse."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from megalite.config.size import ModelSize
from megalite.plan.hardware import GB
from megalite.plan.layout import RECOMPUTES, Layout
from megalite.plan.prediction import Job, Prediction

MOST_MICRO_BATCH = 32
MOST_CHUNKS = 8
EXACT = 6
"""So many of the fastest have their schedules run on paper."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a search is told; what is None is free."""

    global_batch_size: int
    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    micro_batch_size: int | None = None
    recompute: str | None = None
    zero: int | None = None
    offload: bool = False
    """Whether the optimizer may live on the host."""
    splits_backward: bool = True
    """Whether schedules with split backwards may be taken."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found."""

    best: list[Prediction]
    """The fastest that fit, fastest first."""
    fitting: list[Prediction]
    """All that fit, in the order in which they were tried."""
    lost: Counter[str]
    """How many layouts each reason took away before they were timed."""
    nearest: Prediction | None
    """Of those that do not fit, the one that needs least."""

    @property
    def tried(self) -> int:
        return len(self.fitting) + sum(self.lost.values())


def search(job: Job, wishes: Wishes) -> Found:
    """Try every layout. ValueError where none can run, whatever the memory."""
    fitting: list[Prediction] = []
    lost: Counter[str] = Counter()
    least: Prediction | None = None
    seen = False
    for layout in layouts(job, wishes, lost):
        seen = True
        candidate = Prediction(job=job, layout=layout)
        if candidate.fits:
            fitting.append(candidate)
            continue
        lost["does not fit"] += 1
        if least is None or candidate.peak < least.peak:
            least = candidate
    if not seen:
        raise ValueError(_impossible(job, wishes))
    ranked = sorted(fitting, key=lambda candidate: candidate.quick_time.total)
    return Found(
        best=sorted(ranked[:EXACT], key=lambda candidate: candidate.time.total) + ranked[EXACT:],
        fitting=fitting,
        lost=lost,
        nearest=least,
    )


def layouts(job: Job, wishes: Wishes, lost: Counter[str] | None = None) -> Iterator[Layout]:
    """Every valid layout, leaving out what surely is no better than another: what needs more recomputation than memory
    asks for comes last, and is given only where less does not fit.
    """
    lost = Counter() if lost is None else lost
    size, gpus = job.size, job.cluster.gpus
    for tensor in divisors(gpus):
        if not _allowed(tensor, wishes.tensor) or not divides_heads(size, tensor):
            continue
        if tensor > job.cluster.gpus_per_node and wishes.tensor is None:
            lost["tensor parallelism across nodes"] += 1
            continue
        for pipeline in divisors(gpus // tensor):
            if not _allowed(pipeline, wishes.pipeline) or pipeline > size.num_layers:
                continue
            data = gpus // tensor // pipeline
            if _allowed(data, wishes.data) and wishes.global_batch_size % data == 0:
                yield from _inside(job, wishes, tensor, pipeline, data)


def _inside(job: Job, wishes: Wishes, tensor: int, pipeline: int, data: int) -> Iterator[Layout]:
    """Schedules, micro-batches and what is computed again, for sizes of the groups."""
    share = wishes.global_batch_size // data
    base = Layout(
        tensor=tensor,
        sequence_parallel=tensor > 1 and job.size.seq_length % tensor == 0,
        pipeline=pipeline,
        data=data,
        global_batch_size=wishes.global_batch_size,
    )
    stages = (0,) if data == 1 else (1, 2) if pipeline == 1 else (1,)
    zeros = stages if wishes.zero is None else (min(wishes.zero, stages[-1]),)
    for micro in divisors(share):
        if micro > MOST_MICRO_BATCH or not _allowed(micro, wishes.micro_batch_size):
            continue
        for schedule, chunks in pipelines(job.size, pipeline, share // micro, wishes.splits_backward):
            for zero, offload in product(zeros, (0.0, 1.0) if wishes.offload else (0.0,)):
                lighter = replace(base, micro_batch_size=micro, schedule=schedule, chunks=chunks)
                yield from _recomputing(job, wishes, replace(lighter, zero=zero, offload=offload))


def _recomputing(job: Job, wishes: Wishes, layout: Layout) -> Iterator[Layout]:
    """Less recomputation is always faster: the least that fits, else all."""
    usual = [r for r in RECOMPUTES if r != "selective" or job.practice.attention != "fused"]
    choices = [r for r in RECOMPUTES if r == wishes.recompute] or usual
    for recompute in choices:
        tried = replace(layout, recompute=recompute)
        if recompute == choices[-1] or Prediction(job=job, layout=tried).fits:
            break
    yield _fewest_layers(job, tried) if recompute == "full" and wishes.recompute is None else tried


def _fewest_layers(job: Job, layout: Layout) -> Layout:
    """The same with as few layers of each stage computed again as fit."""
    low, high = 0, -(-job.size.num_layers // (layout.pipeline * layout.chunks))
    if not Prediction(job=job, layout=layout).fits:
        return layout
    while high - low > 1:
        middle = (low + high) // 2
        fits = Prediction(job=job, layout=replace(layout, recomputed_layers=middle)).fits
        low, high = (low, middle) if fits else (middle, high)
    all_of_them = high >= -(-job.size.num_layers // (layout.pipeline * layout.chunks))
    return layout if all_of_them else replace(layout, recomputed_layers=high)


def pipelines(size: ModelSize, ranks: int, micro_batches: int, splits: bool) -> Iterator[tuple[str, int]]:
    """The schedules that this pipeline can run, each with its stages a rank."""
    if ranks == 1:
        yield "1f1b", 1
        return
    yield "1f1b", 1
    for chunks in range(2, MOST_CHUNKS + 1):
        if size.num_layers >= ranks * chunks and micro_batches >= ranks:
            yield "interleaved", chunks
    if splits:
        yield "zb-h1", 1
        if size.num_layers >= 2 * ranks and micro_batches >= 2 * ranks:
            yield "zb-v", 2


def divides_heads(size: ModelSize, tensor: int) -> bool:
    """Whether heads, their groups and the MLP can be cut so often."""
    cut = (size.num_attention_heads, size.num_query_groups, size.ffn_hidden_size)
    return all(number % tensor == 0 for number in cut)


def divisors(number: int) -> list[int]:
    """Every divisor, smallest first."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def _allowed(value: int, wish: int | None) -> bool:
    return wish is None or value == wish


def _impossible(job: Job, wishes: Wishes) -> str:
    """Why no layout exists, with the nearest wish that has one."""
    size, gpus = job.size, job.cluster.gpus
    tensors = [t for t in divisors(gpus) if divides_heads(size, t)]
    if wishes.tensor and not divides_heads(size, wishes.tensor):
        near = min(tensors, key=lambda t: (abs(t - (wishes.tensor or 1)), t))
        return (
            f"--tp {wishes.tensor} does not divide --num-attention-heads {size.num_attention_heads}, the "
            f"{size.num_query_groups} query groups and --ffn-hidden-size {size.ffn_hidden_size}. Try --tp {near}."
        )
    for flag, wish in (("--tp", wishes.tensor), ("--pp", wishes.pipeline), ("--dp", wishes.data)):
        if wish and gpus % wish:
            near = min(divisors(gpus), key=lambda d: (abs(d - wish), d))
            return f"{flag} {wish} does not divide {gpus} GPUs. Try {flag} {near}."
    product = (wishes.tensor or 1) * (wishes.pipeline or 1) * (wishes.data or 1)
    if gpus % product or (wishes.tensor and wishes.pipeline and wishes.data and product != gpus):
        return f"--tp x --pp x --dp is {product}, which does not make {gpus} GPUs. Leave one of them out."
    if wishes.pipeline and wishes.pipeline > size.num_layers:
        return f"--pp {wishes.pipeline} is more than --num-layers {size.num_layers}. Try --pp {_below(gpus, size)}."
    batch = wishes.global_batch_size
    replicas = sorted(
        gpus // t // p
        for t in tensors
        for p in divisors(gpus // t)
        if p <= size.num_layers and _allowed(t, wishes.tensor) and _allowed(p, wishes.pipeline)
    )
    step = (wishes.data or replicas[0]) * (wishes.micro_batch_size or 1)
    good = max(step, round(batch / step) * step)
    return (
        f"--global-batch-size {batch} cannot be shared out: with {gpus} GPUs it must be a multiple of "
        f"{step}. Try --global-batch-size {good}."
    )


def _below(gpus: int, size: ModelSize) -> int:
    return max(d for d in divisors(gpus) if d <= size.num_layers)


def reason(candidate: Prediction, best: Prediction) -> str:
    """Why one layout is slower than the best, or does not run: its largest extra cost in words."""
    layout, over = candidate.layout, candidate.peak - candidate.job.budget
    if over > 0:
        return f"does not fit by {over / GB:.1f} GB"
    ours, theirs = candidate.quick_time, best.quick_time
    names = {
        "compute": "recomputation" if layout.recompute == "full" else "smaller products",
        "tensor": f"tensor parallelism over {layout.tensor}"
        + (", which crosses nodes" if layout.tensor > candidate.job.cluster.gpus_per_node else ""),
        "bubble": f"a bubble over {layout.pipeline} stages with {layout.num_micro_batches} micro-batches",
        "messages": f"messages between {layout.pipeline} stages",
        "data": f"sums over {layout.data} replicas",
        "optimizer": "a larger update on each GPU",
        "offload": "the way to the host and back",
        "rest": "the rest",
    }
    extra = {name: getattr(ours, name) - getattr(theirs, name) for name in names}
    most = max(extra, key=lambda name: extra[name])
    return f"{names[most]}: {extra[most]:+.3g} s"
