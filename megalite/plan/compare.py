"""The strategies side by side for one model, and what to choose on which machines: the tables, computed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from megalite.arith.traffic import NOTHING_AGAIN, Sent, data_parallel_traffic, pipeline_traffic, tensor_parallel_traffic
from megalite.plan.hardware import GB, find_device, make_cluster
from megalite.plan.layout import Layout
from megalite.plan.prediction import Job, Prediction
from megalite.plan.search import Wishes, divides_heads, divisors, search
from megalite.plan.stages import held_stages, joined
from megalite.plan.table import seconds


def strategies(job: Job, batch: int) -> Iterator[tuple[str, Layout]]:
    """Each strategy on all devices by itself, and all of them together."""
    gpus, local = job.cluster.gpus, job.cluster.gpus_per_node
    tensor = max(t for t in divisors(gpus) if t <= local and divides_heads(job.size, t))
    pipeline = max(p for p in divisors(gpus) if p <= job.size.num_layers)
    alone = Layout(data=gpus, global_batch_size=batch)
    yield "data parallel", alone
    yield "ZeRO-1", replace(alone, zero=1)
    yield "ZeRO-2", replace(alone, zero=2)
    yield "ZeRO-3 (other frameworks)", replace(alone, zero=3)
    yield "tensor parallel", replace(alone, tensor=tensor, sequence_parallel=True, data=gpus // tensor)
    yield "pipeline parallel", replace(alone, pipeline=pipeline, data=gpus // pipeline)
    inner = max(t for t in divisors(gpus) if t <= tensor and divides_heads(job.size, t) and gpus // t >= min(4, gpus))
    middle = max(p for p in divisors(gpus // inner) if p <= min(job.size.num_layers, 8, max(1, gpus // inner // 2)))
    together = replace(alone, tensor=inner, sequence_parallel=True, pipeline=middle, data=gpus // inner // middle)
    yield "3D", together
    yield "3D with ZeRO-1", replace(together, zero=1)


def sent_bytes(found: Prediction) -> dict[str, int]:
    """Payload bytes of a step on the pipeline rank with most layers, by group, as the trainer counts them."""
    layout, size = found.layout, found.size
    part = joined(max(held_stages(size, layout), key=lambda held: joined(held).layers))
    width = found.job.practice.param_bytes
    neighbours = 2 * layout.chunks if layout.pipeline > 1 else 0
    parameters = max(rank.params for rank in found.memory) // width
    m = layout.num_micro_batches
    step = {
        "neighbours": neighbours,
        "tensor_parallel_size": layout.tensor,
        "micro_batch_size": layout.micro_batch_size,
        "num_micro_batches": m,
    }
    sp = layout.sequence_parallel
    groups = {
        "tp": tensor_parallel_traffic(size, part, NOTHING_AGAIN, sequence_parallel=sp, param_bytes=width, **step),
        "pp": pipeline_traffic(size, sequence_parallel=sp, hidden_bytes=width, **step),
        "dp": data_parallel_traffic(
            parameters=parameters * (layout.data if layout.zero == 3 else 1),
            data_parallel_size=layout.data,
            buckets=1,
            grad_bytes=found.job.practice.grad_bytes,
            param_bytes=width,
            sharded=layout.zero > 0,
            sums=m if layout.zero == 2 else 1,
        ),
    }
    if layout.zero == 3:
        groups["dp"]["all_gather"] = Sent(calls=2 * m, nbytes=2 * m * groups["dp"]["all_gather"].nbytes)
        groups["dp"]["reduce_scatter"] = Sent(calls=m, nbytes=m * groups["dp"]["reduce_scatter"].nbytes)
    return {group: sum(sent.nbytes for sent in sends.values()) for group, sends in groups.items()}


def comparison(job: Job, batch: int) -> list[str]:
    """A line for each strategy: memory, communication, bubble and time for the user's model."""
    head = f"{'strategy':26} {'memory':>10} {'fits':>5} {'tp sends':>10} {'pp sends':>10} {'dp sends':>10}"
    lines = [head + f" {'bubble':>7} {'step':>9}  layout"]
    for name, layout in strategies(job, batch):
        if layout.num_micro_batches < 1 or batch % layout.data:
            lines.append(f"{name:26} cannot run: {batch} sequences are not shared out over {layout.data} replicas")
            continue
        found = Prediction(job=job, layout=layout)
        sent = sent_bytes(found)
        bubble = found.time.bubble / found.time.total
        lines.append(
            f"{name:26} {found.peak / GB:>7.1f} GB {'yes' if found.fits else 'NO':>5} "
            + " ".join(f"{sent[group] / GB:>7.1f} GB" for group in ("tp", "pp", "dp"))
            + f" {bubble:>7.1%} {seconds(found.time.total):>9}  {layout}"
        )
    return lines


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Machines to choose a layout for."""

    name: str
    gpu: str
    gpus_per_node: int
    nodes: int
    intra: str
    inter_gbps: float
    """Of each GPU."""


SCENARIOS = (
    Scenario(name="one node without NVLink", gpu="a100", gpus_per_node=8, nodes=1, intra="pcie", inter_gbps=100),
    Scenario(name="one node with NVLink", gpu="a100", gpus_per_node=8, nodes=1, intra="nvlink", inter_gbps=100),
    Scenario(name="4 nodes, 100 Gb/s a node", gpu="a100", gpus_per_node=8, nodes=4, intra="nvlink", inter_gbps=12.5),
    Scenario(name="4 nodes, 100 Gb/s a GPU", gpu="a100", gpus_per_node=8, nodes=4, intra="nvlink", inter_gbps=100),
    Scenario(name="4 nodes, 400 Gb/s a GPU", gpu="h100", gpus_per_node=8, nodes=4, intra="nvlink", inter_gbps=400),
    Scenario(name="32 nodes, 400 Gb/s a GPU", gpu="h100", gpus_per_node=8, nodes=32, intra="nvlink", inter_gbps=400),
)


def recommendations(job: Job, batch: int) -> Iterator[tuple[Scenario, Prediction | None]]:
    """The fastest layout that fits in each scenario, if any does, even with the optimizer on the host."""
    for scenario in SCENARIOS:
        cluster = make_cluster(
            find_device(scenario.gpu),
            gpus_per_node=scenario.gpus_per_node,
            nodes=scenario.nodes,
            intra=scenario.intra,
            inter_gbps=scenario.inter_gbps,
        )
        here = replace(job, cluster=cluster)
        whole = -(-batch // cluster.gpus) * cluster.gpus
        best = search(here, Wishes(global_batch_size=whole)).best
        best = best or search(here, Wishes(global_batch_size=whole, offload=True)).best
        yield scenario, best[0] if best else None


def scenario_lines(job: Job, batch: int) -> list[str]:
    """The recommendations as text."""
    lines = []
    for scenario, found in recommendations(job, batch):
        told = f"{found.layout}: {seconds(found.time.total)}, MFU {found.mfu:.0%}" if found else "does not fit"
        lines.append(f"{scenario.name:26} {scenario.gpu:>5}  {told}")
    return lines
