"""Bytes that training keeps on one rank: of states, and of the activations of a layer."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from megalite.config.size import ModelSize


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes of parameters and of what the optimizer holds beside them."""

    params: int
    main_params: int
    main_grads: int
    moments: int

    @property
    def total(self) -> int:
        return self.params + self.main_params + self.main_grads + self.moments


def state_bytes(
    parameters: int, *, param_bytes: int, moments: int | Fraction, shards: int = 1, grad_shards: int = 1
) -> StateBytes:
    """Bytes for this many parameters on a rank: 16 each in fp32 with Adam, 18 in 16 bits with main parameters in fp32.

    Where main parameters and moments are in `shards`, one on each data parallel rank, it is 8 + 8/d and 6 + 12/d; where
    main gradients are as well, 4 + 12/d and 2 + 16/d, beside the buckets that are summed (Rajbhandari et al. 2020).
    `param_bytes` is 2 for bf16 and fp16, 4 for fp32; `moments` is 2 for Adam, 1 for SGD with momentum, 0 for SGD
    without, and between 1 and 2 for Muon, which has one for the matrices of layers. Main gradients
    and moments have four bytes, or as many as the parameters if those have more.
    """
    main, owned = max(param_bytes, 4), -(-parameters // shards)
    return StateBytes(
        params=parameters * param_bytes,
        main_params=owned * main if param_bytes < main else 0,
        main_grads=-(-parameters // grad_shards) * main,
        moments=round(owned * main * moments),
    )


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """What decides how much a layer keeps of one micro-batch from forward to backward."""

    micro_batch_size: int
    param_bytes: int
    hidden_bytes: int
    """Of an element of the residual stream."""
    tensor_parallel_size: int
    sequence_parallel: bool
    core: Literal["fused", "blocked", "softmax", "dropout"]
    """How attention is computed: fused, in blocks (short sequences on a CPU), by its softmax, or that with dropout."""
    dropout: bool
    """On hidden activations."""
    recomputed: frozenset[str] = frozenset()
    """Which of core_attn, mlp and layernorm are computed again in backward."""
    distributed: bool = False
    """Each tensor parallel rank keeps a part of the input of what is recomputed."""


BLOCK, LONGEST = 64, 512
"""Queries of a block under the blocked core, which keeps probabilities up to the end of each block, and of a sample."""


def layer_activations(size: ModelSize, how: Keeping) -> dict[str, int]:
    """Bytes of each tensor that one layer keeps from forward to backward of one micro-batch, by its name.

    In sum it is Korthikanti et al. 2022, table 2, beside the statistics of norms. With beta bytes an element, dropout
    and attention by its softmax: sbh (4 beta + 2 + 12 beta / t) + (2 beta + 1) a s^2 b / t with tensor parallelism, and
    all of it divided by t with sequence parallelism. With beta = 2: sbh (10 + 24/t) + 5 a s^2 b / t. Grouped queries,
    gated MLPs and RMSNorm follow the same reasoning. What all layers share (parameters, rotary angles, masks) is not
    counted.
    """
    t, beta, tokens = how.tensor_parallel_size, how.param_bytes, size.seq_length * how.micro_batch_size
    rows = tokens // t if how.sequence_parallel else tokens
    normed = {} if "layernorm" in how.recomputed else {"input": rows * size.hidden_size * beta}
    mask = {"mask of the dropout after": rows * size.hidden_size} if how.dropout else {}
    inside = {
        "output of fc1": tokens * size.fc1_width * beta // t,
        "input of fc2": tokens * size.ffn_hidden_size * beta // t,
    }
    return {
        **norm_activations("attention", rows * size.hidden_size * how.hidden_bytes, rows, size, how),
        **{f"{name} of qkv": nbytes for name, nbytes in normed.items()},
        **_heads(size, tokens, how),
        **({} if "core_attn" in how.recomputed else _core(size, tokens, how)),
        "input of the output projection": tokens * size.query_width * beta // t,
        **{f"{name} attention": nbytes for name, nbytes in mask.items()},
        **norm_activations("MLP", rows * size.hidden_size * how.hidden_bytes, rows, size, how),
        **{f"{name} of fc1": nbytes for name, nbytes in normed.items()},
        **({} if "mlp" in how.recomputed else inside),
        **{f"{name} the MLP": nbytes for name, nbytes in mask.items()},
    }


def norm_activations(name: str, nbytes: int, rows: int, size: ModelSize, how: Keeping) -> dict[str, int]:
    """LayerNorm keeps the mean and the deviation of each row, RMSNorm its scale."""
    of_rows = rows * max(how.param_bytes, 4)
    kind = {"mean": of_rows, "deviation": of_rows} if size.norm_bias else {"scale": of_rows}
    return {f"{term} of the {name} norm": kept for term, kept in {"input": nbytes, **kind}.items()}


def _heads(size: ModelSize, tokens: int, how: Keeping) -> dict[str, int]:
    """What attention is given. It stays where qkv has put it, unless rotary positions or norms make it anew."""
    t, beta = how.tensor_parallel_size, how.param_bytes
    queries, keys = (tokens * n // t for n in (size.num_attention_heads, size.num_query_groups))
    width = size.kv_channels * beta
    where = tokens * size.qkv_width * beta // t
    anew = {"queries": queries * width, "keys": keys * width}
    if size.qk_norm:
        # The norms read what qkv gave. Without rotary positions the values stay there, too.
        norms = norm_activations("query", queries * width, queries, size, how) | norm_activations(
            "key", keys * width, keys, size, how
        )
        norms = {name: nbytes for name, nbytes in norms.items() if not name.startswith("input")}
        return {"output of qkv": where, **norms, **anew, **({"values": keys * width} if size.rotary_dim else {})}
    return anew | {"values": keys * width} if size.rotary_dim else {"queries, keys and values": where}


def _core(size: ModelSize, tokens: int, how: Keeping) -> dict[str, int]:
    t, beta, heads = how.tensor_parallel_size, how.param_bytes, size.num_attention_heads
    if how.core == "fused":
        # The kernel gives what it computes in the order of its queries; rotary positions leave those head by head.
        by_heads = {"output by heads": tokens * size.query_width * beta // t} if size.rotary_dim else {}
        return {"log-sum-exp of attention": tokens * heads * max(beta, 4) // t, **by_heads}
    if how.core == "blocked":
        return {
            "scaled queries": tokens * size.query_width * beta // t,
            **{
                f"probabilities up to key {end}": how.micro_batch_size * heads * BLOCK * end * beta // t
                for end in range(BLOCK, size.seq_length + 1, BLOCK)
            },
        }
    square = tokens * heads * size.seq_length // t
    copied = size.num_query_groups < heads and not size.rotary_dim and not size.qk_norm
    dropped = {"mask of attention dropout": square, "dropped probabilities": square * beta}
    return {
        **({"queries, by their groups": tokens * size.query_width * beta // t} if copied else {}),
        "probabilities": square * beta,
        **(dropped if how.core == "dropout" else {}),
    }


def region_activations(size: ModelSize, how: Keeping) -> dict[str, int]:
    """Bytes of what layers that are recomputed as a whole keep: what the first of them is given."""
    elements = size.seq_length * how.micro_batch_size * size.hidden_size * how.hidden_bytes
    cut = how.sequence_parallel or how.distributed
    return {"input": elements // how.tensor_parallel_size if cut else elements}
