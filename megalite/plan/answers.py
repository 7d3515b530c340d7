"""Questions about a model and machines, each answered by predictions or searches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from megalite.arith.parameters import count_parameters
from megalite.config.size import ModelSize
from megalite.plan.hardware import Cluster
from megalite.plan.layout import Layout
from megalite.plan.prediction import Job, Prediction
from megalite.plan.search import Wishes, search


def largest_micro_batch(job: Job, layout: Layout) -> Prediction | None:
    """The layout with as large a micro-batch as fits, of those that divide the batch; None where not even 1 does."""
    share = layout.global_batch_size // layout.data
    best = None
    for size in (size for size in range(1, share + 1) if share % size == 0):
        candidate = Prediction(job=job, layout=replace(layout, micro_batch_size=size))
        if not candidate.fits:
            break
        best = candidate
    return best


def fewest_gpus(job: Job, wishes: Wishes) -> Prediction | None:
    """The fastest layout on the least power of two of GPUs on which any fits, up to 65,536."""
    per_node, gpus = job.cluster.gpus_per_node, 1
    while gpus <= 65536:
        cluster = Cluster(device=job.cluster.device, gpus_per_node=min(gpus, per_node), nodes=-(-gpus // per_node))
        batch = max(wishes.global_batch_size, gpus)
        try:
            found = search(replace(job, cluster=cluster), replace(wishes, global_batch_size=batch))
        except ValueError:
            found = None
        if found and found.best:
            return found.best[0]
        gpus *= 2
    return None


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest model of the user's shape that fits."""

    parameters: int
    prediction: Prediction


def largest_model(job: Job, wishes: Wishes) -> Largest | None:
    """Of the same shape (width for depth, heads as wide, MLP as wide for its width), the largest that fits: found by
    halving over the number of layers.
    """
    low, high, best = 0, 2, None
    while high <= 4096:
        if not (found := _fitting(job, wishes, high)):
            break
        low, high, best = high, 2 * high, found
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        if found := _fitting(job, wishes, middle):
            low, best = middle, found
        else:
            high = middle
    if best is None:
        return None
    return Largest(parameters=count_parameters(best.job.size).total, prediction=best)


def _fitting(job: Job, wishes: Wishes, layers: int) -> Prediction | None:
    try:
        found = search(replace(job, size=scaled(job.size, layers)), wishes)
    except ValueError:
        return None
    return found.best[0] if found.best else None


def scaled(size: ModelSize, layers: int) -> ModelSize:
    """The model with so many layers and its width in proportion, in whole heads of the same width: 128 wide steps."""
    step = 8 * size.kv_channels
    hidden = max(1, round(size.hidden_size * layers / size.num_layers / step)) * step
    heads = hidden // size.kv_channels
    grouped = size.num_query_groups < size.num_attention_heads
    ffn = round(size.ffn_hidden_size * hidden / size.hidden_size / 64) * 64
    return replace(
        size,
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_query_groups=8 if grouped else heads,
        ffn_hidden_size=ffn,
    )


def faster_networks(job: Job, layout: Layout, factors: tuple[float, ...] = (2, 4)) -> Iterator[tuple[str, Prediction]]:
    """The same layout where links are so many times faster, each kind of link by itself."""
    device = job.cluster.device
    for factor in factors:
        kinds = {
            "network between nodes": replace(device, network=device.network * factor),
            "links within a node": replace(device, intra=device.intra * factor, pcie=device.pcie * factor),
        }
        for name, faster in kinds.items():
            cluster = replace(job.cluster, device=faster)
            yield f"{factor:g} x {name}", Prediction(job=replace(job, cluster=cluster), layout=layout)
