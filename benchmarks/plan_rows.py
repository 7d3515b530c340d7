"""Published and measured runs as the planner's cases: read where they lie, never copied."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from megalite.config.size import ModelSize
from megalite.plan.hardware import Cluster, find_device, make_cluster
from megalite.plan.layout import Layout, Practice, Recompute

Row = dict[str, str]
_GPUS = {
    ("V100", "32"): "v100",
    ("A100", "40"): "a100-40",
    ("A100", "80"): "a100",
    ("H100", "80"): "h100",
    ("H100", "96"): "h100-96",
}

MEGATRON = Practice(attention="dropout", dropout=True, grad_bytes=2)
"""Of 2019 to 2022: attention by its softmax with dropout, 16-bit gradients, nothing hidden."""
MODERN = Practice(attention="fused", overlap_grads=True, overlap_params=True)
FSDP = replace(MODERN, grad_bytes=2)
B200 = Practice(software="megatron", workspace=0.3 * 2**30, wide_gradients=True)
DEEPSPEED_3 = replace(MEGATRON, flat=True)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run that was timed."""

    name: str
    source: str
    machine: str
    group: str
    """Runs that did the same work on as many GPUs, in several layouts."""
    size: ModelSize
    layout: Layout
    practice: Practice
    cluster: Cluster
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is known of all runs of one publication."""

    machine: str
    practice: Practice
    gpus_per_node: int = 8
    inter_gbps: float | None = None


SOURCES = {
    "Megatron-LM 2019": Source(machine="dgx2-v100", practice=MEGATRON, gpus_per_node=16, inter_gbps=50),
    "Megatron-LM README 2020-09": Source(machine="dgx-a100-40", practice=replace(MEGATRON, cut_messages=False)),
    "Narayanan": Source(machine="selene", practice=MEGATRON),
    "Korthikanti": Source(machine="selene", practice=MEGATRON),
    "MT-NLG": Source(machine="selene-deepspeed", practice=MEGATRON),
    "BLOOM": Source(machine="jean-zay", practice=MEGATRON, inter_gbps=50),
    "GPT-NeoX": Source(machine="selene-deepspeed", practice=MEGATRON),
    "Zero Bubble": Source(machine="zero-bubble", practice=replace(MEGATRON, attention="softmax", dropout=False)),
    "llm-foundry": Source(machine="mosaic", practice=FSDP),
    "nanotron": Source(machine="hugging-face", practice=replace(MODERN, overlap_params=False)),
    "ultrascale": Source(machine="hugging-face", practice=replace(MODERN, overlap_params=False)),
    "torchtitan": Source(machine="torchtitan", practice=replace(FSDP, grad_bytes=4)),
    "InternEvo": Source(machine="internevo", practice=FSDP, inter_gbps=50),
}
"""By how the name of the source begins."""


def model(
    layers: int,
    hidden: int,
    heads: int,
    seq: int,
    vocab: int,
    *,
    ffn: int = 0,
    groups: int = 0,
    gated: bool = False,
    tied: bool = True,
    channels: int = 0,
) -> ModelSize:
    """A GPT of the papers, or with `gated` a Llama."""
    return ModelSize(
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn or 4 * hidden,
        num_attention_heads=heads,
        num_query_groups=groups or heads,
        kv_channels=channels or hidden // heads,
        seq_length=seq,
        max_position_embeddings=seq,
        vocab_size=vocab,
        rotary_dim=hidden // heads if gated else 0,
        gated_mlp=gated,
        learned_positions=not gated,
        linear_bias=not gated,
        qkv_bias=not gated,
        norm_bias=not gated,
        qk_norm=False,
        learned_sinks=False,
        tied_embeddings=tied,
    )


def throughput(path: Path) -> Iterator[Case]:
    """The dense 16-bit runs with a full layout of throughput.csv."""
    for row in _read(path):
        needed = ("tp", "pp", "dp", "mbs", "gbs", "layers", "hidden", "heads", "seq", "iter_time_s", "n_gpus")
        source = next((known for name, known in SOURCES.items() if row["source"].startswith(name)), None)
        if source is None or not all(row[name] for name in needed) or row["precision"].lower() not in ("bf16", "fp16"):
            continue
        yield _throughput(row, source)


def _throughput(row: Row, source: Source) -> Case:
    gpu = _GPUS[row["gpu"], row["gpu_mem_gb"]]
    machine = source.machine
    if machine == "mosaic":
        machine = f"mosaic-{gpu}"
    if row["gpu"] == "V100":
        machine = "dgx2-v100"
    zero = int(row["zero"][0]) if row["zero"][:1].isdigit() else 0
    zero = 3 if row["zero"] == "2" and source.machine == "mosaic" else zero
    practice = source.practice
    if row["framework"].startswith("DeepSpeed"):
        practice, machine = DEEPSPEED_3, "selene-deepspeed"
    n_gpus, gpus_per_node = int(row["n_gpus"]), 16 if row["gpu"] == "V100" else source.gpus_per_node
    local = min(n_gpus, gpus_per_node)
    gated = row["arch"] == "llama"
    pp, layers = int(row["pp"]), int(row["layers"])
    schedule, chunks = "1f1b", int(row["vpp"] or 1)
    for told, name in (("1F1B-I", "interleaved"), ("ZB-1p", "zb-h1"), ("ZB-2p", "zb-h2")):
        if f"schedule {told}" in row["notes"]:
            schedule = name
            chunks = -(-layers // pp) if name == "interleaved" else 1
    size = model(
        layers,
        int(row["hidden"]),
        int(row["heads"]),
        int(row["seq"]),
        int(row["vocab"] or 51200),
        ffn=int(row["ffn"] or 0),
        groups=int(row["kv_heads"] or 0),
        gated=gated,
        tied=not gated,
    )
    return Case(
        name=f"{row['id']} {row['model']}",
        source=row["source"],
        machine=machine,
        group=f"{row['source']} {row['model']} {row['n_gpus']} {row['gbs']} {row['seq']}",
        size=size,
        layout=Layout(
            tensor=int(row["tp"]),
            sequence_parallel=row["sp"] == "1",
            pipeline=pp,
            chunks=chunks,
            schedule="interleaved" if chunks > 1 else schedule,
            context=int(row["cp"] or 1),
            data=int(row["dp"]),
            micro_batch_size=int(row["mbs"]),
            global_batch_size=int(row["gbs"]),
            zero=zero,
            recompute=_recompute(row["recompute"]),
            counted_ends=counted_ends(layers, pp),
        ),
        practice=practice,
        cluster=make_cluster(
            find_device(gpu),
            gpus_per_node=local,
            nodes=-(-n_gpus // local),
            inter_gbps=source.inter_gbps,
        ),
        seconds=float(row["iter_time_s"]),
    )


def _recompute(told: str) -> Recompute:
    """torchtitan's selection of operators is not ours: it counts as none."""
    if told.startswith("full"):
        return "full"
    return "selective" if told.startswith("selective(attn") else "none"


def vtrain(path: Path) -> Iterator[Case]:
    """vtrain_measured_a100.csv: Megatron with full recomputation."""
    for number, row in enumerate(_read(path)):
        n_gpus = int(row["n_gpus"])
        yield Case(
            name=f"{row['set']} {number}",
            source=f"vTrain {row['set'].split()[0]}",
            machine="vtrain-" + row["set"].split()[0],
            group=f"vTrain {row['set']} {row['layers']} {row['hidden']} {n_gpus} {row['gbs']}",
            size=model(int(row["layers"]), int(row["hidden"]), int(row["heads"]), int(row["seq"]), 51200),
            layout=_megatron(row, zero=0),
            practice=MEGATRON,
            cluster=make_cluster(find_device("a100"), gpus_per_node=min(8, n_gpus), nodes=-(-n_gpus // 8)),
            seconds=float(row["iter_time_s"]),
        )


def bloom(path: Path) -> Iterator[Case]:
    """bloom_prequel_layouts.csv: what was tried before BLOOM. The cluster was mended in between: that makes it two."""
    for number, row in enumerate(_read(path)):
        n_gpus = int(row["n_gpus_used"])
        mended = "after" in row["regime"] or "bf16" in row["regime"]
        yield Case(
            name=f"BLOOM {number} {row['section']}",
            source="BLOOM prequel",
            machine="jean-zay" if mended else "jean-zay-before",
            group=f"BLOOM {row['regime']} {row['layers']} {row['hidden']} {row['heads']} {n_gpus} {row['gbs']}",
            size=model(int(row["layers"]), int(row["hidden"]), int(row["heads"] or 64), 2048, int(row["vocab"])),
            layout=_megatron(row, zero=int(row["zero"])),
            practice=MEGATRON,
            cluster=make_cluster(find_device("a100"), gpus_per_node=8, nodes=-(-n_gpus // 8), inter_gbps=50),
            seconds=float(row["sec_per_it"]),
        )


def _megatron(row: Row, *, zero: int) -> Layout:
    return Layout(
        tensor=int(row["tp"]),
        pipeline=int(row["pp"]),
        data=int(row["dp"]),
        micro_batch_size=int(row["mbs"]),
        global_batch_size=int(row["gbs"]),
        zero=zero,
        recompute="full",
        counted_ends=counted_ends(int(row["layers"]), int(row["pp"])),
    )


def counted_ends(layers: int, ranks: int) -> int:
    """Ends of the model that must have counted as layers for ranks to divide them."""
    return next((ends for ends in (0, 2, 1) if (layers + ends) % ranks == 0), 0)


GOLDEN = Practice(attention="dropout", dropout=True, software="megatron")
TORCH = ("fp8-format", "use-megatron-fsdp", "multi-latent-attention", "num-distributed-optimizer-instances")
"""What the planner's models do not have."""


def golden(path: Path) -> Iterator[tuple[str, ModelSize, Layout, Practice, float]]:
    """The dense GPTs of megatron_golden_mem_time.csv with the bytes that each allocated at most."""
    for row in _read(path):
        told = dict((word + "=").split("=")[:2] for word in row["other_args"].split())
        odd = row["num_experts"] or not row["test"].startswith("gpt/") or not row["n_gpus_assumed"]
        if odd or not row["mem_max_alloc_bytes"] or any(name in told for name in TORCH):
            continue
        tp, pp, cp, n_gpus = (int(row[name] or 1) for name in ("tp", "pp", "cp", "n_gpus_assumed"))
        layers = int(row["layers"])
        padded = -(-int(row["vocab"] or 50257) // (128 * tp)) * 128 * tp
        size = model(
            layers,
            int(row["hidden"]),
            int(row["heads"]),
            int(row["seq"]),
            padded,
            ffn=int(row["ffn"] or 0),
            groups=int(row["kv_groups"] or 0),
            tied="untie-embeddings-and-output-weights" not in told,
        )
        per_stage = int(row["vpp_layers_per_stage"] or 0)
        chunks = layers // pp // per_stage if per_stage else int(told.get("num-virtual-stages-per-pipeline-rank", 1))
        unfused = told.get("transformer-impl") == "local" or told.get("attention-backend") == "unfused"
        old = "lts" in row["environment"] + row["platform"] and "ord" in row["platform"]
        recompute: Recompute = "full" if told.get("recompute-granularity") == "full" else "none"
        layout = Layout(
            tensor=tp,
            sequence_parallel=row["sp"] == "True",
            pipeline=pp,
            chunks=chunks,
            schedule="interleaved" if chunks > 1 else "1f1b",
            context=cp,
            data=max(1, n_gpus // (tp * pp * cp)),
            micro_batch_size=int(row["mbs"]),
            global_batch_size=int(row["gbs"] or row["mbs"]),
            zero=int(row["dist_opt"] == "True"),
            recompute=recompute,
        )
        workspace = 38e6 if told.get("transformer-impl") == "local" else 71e6 if "a100" in row["platform"] else 101e6
        practice = replace(GOLDEN, attention="dropout" if unfused or old else "fused", workspace=workspace)
        yield row["test"], size, layout, practice, float(row["mem_max_alloc_bytes"])


LLAMA = {
    "llama3_70b": {"hidden": 8192, "heads": 64, "ffn": 28672, "groups": 8},
    "llama3_405b": {"hidden": 16384, "heads": 128, "ffn": 53248, "groups": 16},
}


def b200(path: Path) -> Iterator[tuple[Case, float]]:
    """The dense runs of simumax_b200_measured.csv, with the GiB that each allocated."""
    for row in _read(path):
        if row["model"] not in LLAMA:
            continue
        seq = int(row["seq"] or 4096)
        sizes = LLAMA[row["model"]]
        tp, pp, dp, cp = (int(row[axis]) for axis in ("tp", "pp", "dp", "cp"))
        size = model(
            int(row["layers"]),
            sizes["hidden"],
            sizes["heads"],
            seq,
            128256,
            ffn=sizes["ffn"],
            groups=sizes["groups"],
            gated=True,
            tied=False,
        )
        case = Case(
            name=row["case"],
            source="SimuMax B200",
            machine="b200",
            group=f"B200 {row['model']} {row['microbatches']} {seq}",
            size=size,
            layout=Layout(
                tensor=tp,
                sequence_parallel=tp > 1,
                pipeline=pp,
                context=cp,
                data=dp,
                micro_batch_size=1,
                global_batch_size=dp * int(row["microbatches"]),
                zero=1,
            ),
            practice=B200,
            cluster=make_cluster(find_device("b200"), gpus_per_node=8, nodes=1),
            seconds=float(row["measured_ms"]) / 1000,
        )
        yield case, float(row["measured_alloc_gib"]) * 2**30


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def timed(folder: Path) -> list[Case]:
    """Every dense 16-bit run with a full layout."""
    return [
        *throughput(folder / "throughput.csv"),
        *vtrain(folder / "vtrain_measured_a100.csv"),
        *bloom(folder / "bloom_prequel_layouts.csv"),
        *(case for case, _ in b200(folder / "simumax_b200_measured.csv")),
    ]


_REPORTED = {
    "hw_full_recompute": "hardware, full recompute",
    "model": "model",
    "model_causal_half": "model, causal",
}


def reported(path: Path) -> Iterator[tuple[ModelSize, int, float, int, float, str]]:
    """Dense runs that report TFLOP/s and agree with themselves within 0.5 %: the model, sequences a step, seconds,
    GPUs, TFLOP/s of each, and the convention.
    """
    for row in _read(path):
        needed = ("layers", "hidden", "heads", "seq", "gbs", "iter_time_s", "n_gpus", "tflops_per_gpu", "check_ratio")
        if not all(row[name] for name in needed) or row["arch"] not in ("gpt", "llama"):
            continue
        if row["flops_convention"] not in _REPORTED or abs(float(row["check_ratio"]) - 1) > 0.005:
            continue
        gated = row["arch"] == "llama"
        size = model(
            int(row["layers"]),
            int(row["hidden"]),
            int(row["heads"]),
            int(row["seq"]),
            int(row["vocab"]),
            ffn=int(row["ffn"] or 0),
            groups=int(row["kv_heads"] or 0),
            gated=gated,
        )
        told = float(row["iter_time_s"]), int(row["n_gpus"]), float(row["tflops_per_gpu"])
        yield size, int(row["gbs"]), *told, _REPORTED[row["flops_convention"]]
