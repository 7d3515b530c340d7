"""Numbers that are told about large models, each worked out again from its assumptions."""

from dataclasses import dataclass

from megalite.arith.flops import model_flops
from megalite.arith.parameters import count_parameters
from megalite.config.size import ModelSize
from megalite.plan.flops import executed_flops

YEAR = 365 * 86400.0
GIGA = 1e9


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is told, what comes out, and what to make of it."""

    told: str
    computed: tuple[tuple[str, float, str], ...]
    """Name, value and unit."""
    verdict: str


def gpt(layers: int, hidden: int, heads: int, *, vocab: int = 51200, seq: int = 2048) -> ModelSize:
    """A GPT of the papers."""
    return ModelSize(
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=heads,
        num_query_groups=heads,
        kv_channels=hidden // heads,
        seq_length=seq,
        max_position_embeddings=seq,
        vocab_size=vocab,
        rotary_dim=0,
        gated_mlp=False,
        learned_positions=True,
        linear_bias=True,
        qkv_bias=True,
        norm_bias=True,
        qk_norm=False,
        learned_sinks=False,
        tied_embeddings=True,
    )


def state_bytes_per_parameter(zero: int, replicas: int, *, grad: int = 2, copies: int = 12) -> float:
    """2 bytes of parameter, `grad` of gradient and `copies` of what the optimizer has, of which ZeRO shares out more
    and more: Rajbhandari et al. 2020, with K = 12.
    """
    shares = [1 / replicas if zero >= stage else 1.0 for stage in (3, 2, 1)]
    return 2 * shares[0] + grad * shares[1] + copies * shares[2]


def activations(size: ModelSize, *, micro_batch_size: int, recompute: str) -> float:
    """Bytes of all layers by Korthikanti et al. 2022, table 2, with dropout and one GPU: sbh (34 + 5as/h), 34 sbh with
    selective and 2 sbh with full recomputation.
    """
    sbh = size.seq_length * micro_batch_size * size.hidden_size
    square = 5 * size.num_attention_heads * size.seq_length / size.hidden_size
    return size.num_layers * sbh * {"none": 34 + square, "selective": 34.0, "full": 2.0}[recompute]


def serial_efficiency(
    parameters: float, layers: int, hidden: int, *, tensor: int, data: int, micro_batches: int, tp: float, dp: float
) -> float:
    """What is left of the speed of one GPU at 150 TFLOP/s, 2048 tokens a micro-batch, if nothing is hidden: a step is
    m (C + T_tp) + T_dp. `tp` and `dp` are bytes a second.
    """
    tokens, flops = 2048, 150e12
    compute = 6 * parameters * tokens / (tensor * flops)
    of_layer = 4 * 2 * (tensor - 1) / tensor * 2 * tokens * hidden / tp
    sums = 2 * (data - 1) / data * 2 * parameters / tensor / dp
    return micro_batches * compute / (micro_batches * (compute + layers * of_layer) + sums)


def micro_batches_for(ranks: int, used: float) -> int:
    """Micro-batches of a pipeline of so many ranks that is busy for this share of its time."""
    return round(used / (1 - used) * (ranks - 1))


def tokens_to_hide(flops: float, bandwidth: float) -> float:
    """Tokens of a GPU and step above which sums of 16-bit gradients are less than 20 % of its time, whatever the model:
    (16/6) X / BW.
    """
    return 16 / 6 * flops / bandwidth


def claims() -> list[Claim]:
    """The claims of surveys, in the order in which they tend to be told."""
    return [*_of_size_and_time(), *_of_savings(), *_of_speed()]


def _of_size_and_time() -> list[Claim]:
    big, tokens = gpt(96, 12288, 96), 300e9
    count = count_parameters(big).total
    samples = tokens / big.seq_length
    executed = executed_flops(big, samples=1, recompute="full") * samples
    needed = model_flops(big, samples=1) * samples
    return [
        Claim(
            told="GPT-3 175B needs 700 GB for its parameters",
            computed=(
                ("175e9 x 4 bytes", 175e9 * 4 / GIGA, "GB"),
                ("in 16 bits", 175e9 * 2 / GIGA, "GB"),
                (f"{count:,} x 4 bytes", count * 4 / GIGA, "GB"),
            ),
            verdict="true in fp32 only",
        ),
        Claim(
            told="with gradients and optimizer 2.8 TB",
            computed=(
                ("16 bytes each", 175e9 * state_bytes_per_parameter(0, 1) / 1e12, "TB"),
                ("with fp32 gradients, 18", 175e9 * state_bytes_per_parameter(0, 1, grad=4) / 1e12, "TB"),
                ("with both gradients, 20", 175e9 * state_bytes_per_parameter(0, 1, grad=6) / 1e12, "TB"),
                ("activations, b=1", activations(big, micro_batch_size=1, recompute="none") / GIGA, "GB"),
                ("  with flash attention", activations(big, micro_batch_size=1, recompute="selective") / GIGA, "GB"),
                ("  recomputed", activations(big, micro_batch_size=1, recompute="full") / GIGA, "GB"),
            ),
            verdict="true for 16 bytes a parameter, activations not counted",
        ),
        Claim(
            told="288 years on one A100",
            computed=(
                ("needs, with 8 FLOPs", 8 * 175e9 * tokens / (288 * YEAR) / 1e12, "TFLOP/s"),
                ("at 140 TFLOP/s, with 8", 8 * 175e9 * tokens / 140e12 / YEAR, "years"),
                ("at 140 TFLOP/s, with 6", 6 * 175e9 * tokens / 140e12 / YEAR, "years"),
                ("exact FLOPs, full recomputation", executed / 140e12 / YEAR, "years"),
                ("exact FLOPs, none", needed / 140e12 / YEAR, "years"),
            ),
            verdict="false: it is what one V100 takes",
        ),
    ]


def _of_savings() -> list[Claim]:
    big = gpt(96, 12288, 96)
    return [
        Claim(
            told="recomputation saves 30 to 50 % of memory for 25 % more time",
            computed=(
                ("activations, selective", -activation_saving(big, "selective"), "%"),
                ("activations, full", -activation_saving(big, "full"), "%"),
                ("FLOPs, full", 100 / 3, "% more"),
            ),
            verdict="of all memory, with unfused attention and a medium batch; a third more time",
        ),
        Claim(
            told="ZeRO-Offload trains 10 times larger models",
            computed=(
                ("states on the GPU, 16 to 2 bytes", 16 / 2, "x"),
                ("the same against ZeRO-1 on 8", (4 + 12 / 8) / 2, "x"),
                ("host, 13B", 13e9 * 12 / GIGA, "GB"),
                ("over PCIe, 13B", 13e9 * 4 / GIGA, "GB a step"),
            ),
            verdict="8 times on one GPU; less beside sharded states on many",
        ),
        Claim(
            told="13B: TP 2 x DP 4 saves 60 % of memory",
            computed=(
                ("DP 8", 13 * state_bytes_per_parameter(0, 8), "GB"),
                ("TP 2 x DP 4", 13 * state_bytes_per_parameter(0, 4) / 2, "GB"),
                ("DP 8, ZeRO-1", 13 * state_bytes_per_parameter(1, 8), "GB"),
                ("TP 2 x DP 4, ZeRO-1", 13 * state_bytes_per_parameter(1, 4) / 2, "GB"),
                ("both, fp32 gradients, DP 8", 13 * state_bytes_per_parameter(1, 8, grad=4), "GB"),
                ("both, fp32 gradients, TP 2", 13 * state_bytes_per_parameter(1, 4, grad=4) / 2, "GB"),
            ),
            verdict="50 % at most from the layout alone; more only if ZeRO-1 comes in",
        ),
    ]


def _of_speed() -> list[Claim]:
    return [
        Claim(
            told="and 85 % of scaling",
            computed=tuple(
                (f"{link}, {m} micro-batches", 100 * efficiency_13b(m, tp, dp), "%")
                for link, tp, dp in (("NVLink", 230e9, 230e9), ("PCIe", 12e9, 12e9), ("100 Gb/s a GPU", 230e9, 12.5e9))
                for m in (4, 32)
            ),
            verdict="on one NVLink node, or with many micro-batches at 100 Gb/s a GPU; never over PCIe",
        ),
        Claim(
            told="GPU utilisation above 80 %",
            computed=tuple(
                (f"{p} stages need, to be busy 80 %", micro_batches_for(p, 0.8), "micro-batches") for p in (2, 4, 8, 16)
            ),
            verdict="as a bubble; nobody reaches 80 % MFU",
        ),
        Claim(
            told="communication below 20 % from 100 Gb/s",
            computed=tuple(
                (link, tokens_to_hide(150e12, bandwidth) / 1000, "thousand tokens a GPU and step")
                for link, bandwidth in (
                    ("NVLink 230 GB/s", 230e9),
                    ("8 x 400 Gb/s a node", 50e9),
                    ("100 Gb/s a GPU", 12.5e9),
                    ("400 Gb/s a node", 6.25e9),
                    ("100 Gb/s a node", 1.5625e9),
                )
            ),
            verdict="tokens of a GPU and step decide, not bandwidth alone",
        ),
    ]


def activation_saving(size: ModelSize, recompute: str) -> float:
    """Percent of activations that recomputation saves."""
    kept = activations(size, micro_batch_size=1, recompute=recompute)
    return 100 * (1 - kept / activations(size, micro_batch_size=1, recompute="none"))


def efficiency_13b(micro_batches: int, tp: float, dp: float) -> float:
    """Of a 13B GPT as TP 2 x DP 4."""
    return serial_efficiency(13e9, 40, 5120, tensor=2, data=4, micro_batches=micro_batches, tp=tp, dp=dp)


def claim_lines() -> list[str]:
    """The claims as text."""
    lines = []
    for claim in claims():
        lines.append(f'"{claim.told}": {claim.verdict}')
        lines += [f"  {name:36} {value:>10,.4g} {unit}" for name, value, unit in claim.computed]
    return lines
