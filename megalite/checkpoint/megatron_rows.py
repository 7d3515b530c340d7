"""The tensors of a model in Megatron Core, part by part, as rows: `TP RANK/NAME` is what one rank holds of a tensor.

Legend: g query groups, q queries per group, hn head dim, h hidden size, f MLP width, v vocabulary
"""

from collections.abc import Iterator
from functools import partial

import torch

from megalite.checkpoint.boxes import volume
from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.rows import Row, Seen, reshaped, same

WORD, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"


def replicated(ours: str, theirs: str, shape: tuple[int, ...]) -> Row:
    """A tensor that all ranks hold alike: rank 0's is read."""
    return same(ours, f"0/{theirs}", shape)


def sharded(ours: str, theirs: str, shape: tuple[int, ...], *, dim: int, matrix: bool, tp: int) -> Row:
    """A tensor of which each rank holds a range of our dimension `dim`, stored as inputs beside outputs, or flat."""
    of_rank = shape[dim] // tp

    def part(t: int) -> Seen:
        box = tuple((t * of_rank, (t + 1) * of_rank) if d == dim else (0, n) for d, n in enumerate(shape))
        inputs = box[-1][1] - box[-1][0]
        stored = (volume(box) // inputs, inputs) if matrix else (volume(box),)
        return reshaped(f"{t}/{theirs}", stored, box)

    return Row(ours=ours, shape=shape, parts=tuple(map(part, range(tp))))


def by_token(ours: str, theirs: str, shape: tuple[int, int], *, padded: int, tp: int) -> Row:
    """A row for each token, and then rows of padding, of which each rank holds a range."""
    (tokens, width), of_rank = shape, padded // tp

    def part(t: int) -> Seen:
        start, stop = (min(n * of_rank, tokens) for n in (t, t + 1))
        return Seen(
            name=f"{t}/{theirs}",
            shape=(of_rank, width),
            box=((start, stop), (0, width)),
            view=lambda tensor: tensor[: stop - start],
            back=lambda tensor: torch.cat([tensor, tensor.new_zeros(of_rank - len(tensor), width)]),
        )

    return Row(ours=ours, shape=shape, parts=tuple(map(part, range(tp))))


def megatron_rows(model: Settings, *, tp: int, padded: int) -> Iterator[Row]:
    """The table of a model that `tp` ranks hold. ValueError where they cannot."""
    h, f, v, hn = (model[name] for name in ("hidden_size", "ffn_hidden_size", "vocab_size", "kv_channels"))
    heads = model["num_attention_heads"]
    groups = model["num_query_groups"] if model["group_query_attention"] else heads
    if heads % groups or groups % tp or f % tp or padded % tp:
        raise ValueError(
            f"{heads} heads in {groups} query groups, an MLP of {f} and a vocabulary of {padded} rows are not split "
            f"evenly by {tp} ranks"
        )
    kinds = ("weight", "bias") if model["normalization"] == "LayerNorm" else ("weight",)
    qkv, fc1 = (groups, heads // groups + 2, hn), (2 if model["swiglu"] or model["quick_geglu"] else 1, f)
    part = partial(sharded, tp=tp)
    yield by_token("embedding.word.weight", WORD, (v, h), padded=padded, tp=tp)
    if model["position_embedding_type"] == "learned_absolute":
        shape = (model["max_position_embeddings"], h)
        yield replicated("embedding.position.weight", "embedding.position_embeddings.weight", shape)
    for n in range(model["num_layers"]):
        ours, theirs = f"layers.{n}", f"decoder.layers.{n}"
        attention = f"{theirs}.self_attention"
        for kind in kinds:
            yield replicated(f"{ours}.attention_norm.{kind}", f"{theirs}.input_layernorm.{kind}", (h,))
            yield replicated(f"{ours}.mlp_norm.{kind}", f"{theirs}.pre_mlp_layernorm.{kind}", (h,))
            for q_k in "qk" if model["qk_layernorm"] else "":
                yield replicated(f"{ours}.attention.{q_k}_norm.{kind}", f"{attention}.{q_k}_layernorm.{kind}", (hn,))
        if model["softmax_type"] == "learnable":
            offset = f"{attention}.core_attention.softmax_offset"
            yield part(f"{ours}.attention.core.sink", offset, (heads,), dim=0, matrix=False)
        out, fc2 = f"{attention}.linear_proj", f"{theirs}.mlp.linear_fc2"
        yield part(f"{ours}.attention.qkv.weight", f"{attention}.linear_qkv.weight", (*qkv, h), dim=0, matrix=True)
        yield part(f"{ours}.attention.out.weight", f"{out}.weight", (h, heads * hn), dim=1, matrix=True)
        yield part(f"{ours}.mlp.fc1.weight", f"{theirs}.mlp.linear_fc1.weight", (*fc1, h), dim=1, matrix=True)
        yield part(f"{ours}.mlp.fc2.weight", f"{fc2}.weight", (h, f), dim=1, matrix=True)
        if model["add_bias_linear"] or model["add_qkv_bias"]:
            yield part(f"{ours}.attention.qkv.bias", f"{attention}.linear_qkv.bias", qkv, dim=0, matrix=False)
        if model["add_bias_linear"]:
            yield replicated(f"{ours}.attention.out.bias", f"{out}.bias", (h,))
            yield part(f"{ours}.mlp.fc1.bias", f"{theirs}.mlp.linear_fc1.bias", fc1, dim=1, matrix=False)
            yield replicated(f"{ours}.mlp.fc2.bias", f"{fc2}.bias", (h,))
    for kind in kinds:
        yield replicated(f"final_norm.{kind}", f"decoder.final_layernorm.{kind}", (h,))
    if model["untie_embeddings_and_output_weights"]:
        yield by_token("head.weight", HEAD, (v, h), padded=padded, tp=tp)
