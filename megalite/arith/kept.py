"""Bytes that autograd keeps of one micro-batch on a stage: at the end of its forward, and at most in its backward.

Logits are counted apart. Beside these are masks of windows and documents, which layers share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megalite.arith.memory import Keeping, layer_activations, norm_activations, region_activations
from megalite.arith.part import Part
from megalite.config.size import ModelSize

INDEX = 8
"""Bytes of a token id or a position."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Of a micro-batch on a stage."""

    after_forward: int
    in_backward: int = 0
    """At most: something may be computed again while what is before it still waits. 0 where nothing is."""
    to_weights: int = 0
    """What the second half of a split backward needs of the first: inputs of linears and gradients of outputs."""


def first_activations(size: ModelSize, how: Keeping, part: Part) -> dict[str, int]:
    """What a stage keeps besides its layers, and what comes before them."""
    tokens = size.seq_length * how.micro_batch_size
    rows = tokens // how.tensor_parallel_size if how.sequence_parallel else tokens
    ids = {"token ids": INDEX * tokens}
    if how.tensor_parallel_size > 1:
        ids["mask of what other ranks look up"] = tokens
    embedding = {
        **ids,
        **({"positions": INDEX * tokens} if size.learned_positions else {}),
        **({"mask of the dropout after the embedding": rows * size.hidden_size} if how.dropout else {}),
    }
    return embedding if part.embedding else {}


def shared_activations(size: ModelSize, how: Keeping) -> dict[str, int]:
    """What the layers of a stage share, once one of them keeps anything."""
    tokens = size.seq_length * how.micro_batch_size
    return {"rotary angles": 2 * tokens * size.rotary_dim * how.param_bytes} if size.rotary_dim else {}


def last_activations(size: ModelSize, how: Keeping, part: Part) -> dict[str, int]:
    """What comes behind the layers, but for the logits."""
    if not part.loss:
        return {}
    tokens, main = size.seq_length * how.micro_batch_size, max(how.param_bytes, 4)
    rows = tokens // how.tensor_parallel_size if how.sequence_parallel else tokens
    return {
        **norm_activations("final", rows * size.hidden_size * how.hidden_bytes, rows, size, how),
        "input of the head": rows * size.hidden_size * how.param_bytes,
        "log-sum-exp of the logits": tokens * main,
        "targets": INDEX * tokens,
        "loss mask": 4 * tokens,
    }


def kept(size: ModelSize, how: Keeping, part: Part, regions: Sequence[int] = ()) -> Kept:
    """`regions`: so many layers each are recomputed as a whole, the first of the stage."""
    plain = replace(how, recomputed=frozenset())
    layer, everything = layer_activations(size, how), sum(layer_activations(size, plain).values())
    region = sum(region_activations(size, how).values())
    angles = sum(shared_activations(size, how).values())
    others = part.layers - sum(regions)
    before = sum(first_activations(size, how, part).values())
    again = []
    for number, layers in enumerate(regions, 1):
        # A region's input is that of its first layer, where it is kept whole.
        inside = layers * everything - (0 if how.distributed else region)
        again.append(before + number * region + inside + angles)
    before += len(regions) * region + others * sum(layer.values()) + angles * (others > 0)
    if others:
        again += [before - sum(layer.values()) + alive for alive in _in_a_layer(size, how)]
    return Kept(
        after_forward=before + sum(last_activations(size, how, part).values()),
        in_backward=max(again, default=0),
        to_weights=part.layers * sum(weight_activations(size, how).values())
        + sum(head_activations(size, how, part).values()),
    )


_MODULES = {
    "core_attn": ("input of qkv", "input of the output projection"),
    "mlp": ("input of fc1", "mask of the dropout"),
}
"""What comes before and behind a module's own tensors in a layer."""


def _in_a_layer(size: ModelSize, how: Keeping) -> list[int]:
    """What is there of a layer when one of its modules has been computed again: all that comes before it, and it."""
    terms, whole = layer_activations(size, how), layer_activations(size, replace(how, recomputed=frozenset()))
    names, found = list(whole), []
    for module in how.recomputed & _MODULES.keys():
        first, last = _MODULES[module]
        start = names.index(first)
        stop = next((i for i, name in enumerate(names[start:], start) if name.startswith(last)), len(names))
        # Where the norm is recomputed, the MLP is given its result anew; the core is not.
        alive = [
            *(name for name in names[:start] if name in terms),
            *names[start if module == "mlp" else start + 1 : stop],
        ]
        inputs = ["input of qkv"] if module == "core_attn" and "input of qkv" in terms else []
        found.append(sum(whole[name] for name in [*alive, *inputs]))
    return found


def weight_activations(size: ModelSize, how: Keeping) -> dict[str, int]:
    """What a layer keeps of a split backward from its first half to its second."""
    t, beta, tokens = how.tensor_parallel_size, how.param_bytes, size.seq_length * how.micro_batch_size
    rows = tokens // t if how.sequence_parallel else tokens
    widths = {"qkv": size.qkv_width, "fc1": size.fc1_width}
    entered = {"output projection": size.query_width, "fc2": size.ffn_hidden_size}
    return {
        **{f"input of {name}": rows * size.hidden_size * beta for name in widths},
        **{f"gradient of {name}": tokens * width * beta // t for name, width in widths.items()},
        **{f"input of {name}": tokens * width * beta // t for name, width in entered.items()},
        **{f"gradient of {name}": tokens * size.hidden_size * beta for name in entered},
    }


def head_activations(size: ModelSize, how: Keeping, part: Part) -> dict[str, int]:
    """The same of the head. Its gradient is large; under zb-h1 its stage has the fewest micro-batches before I."""
    if not part.loss:
        return {}
    t, beta, tokens = how.tensor_parallel_size, how.param_bytes, size.seq_length * how.micro_batch_size
    rows = tokens // t if how.sequence_parallel else tokens
    return {
        "input of the head": rows * size.hidden_size * beta,
        "gradient of the logits": tokens * size.vocab_size * beta // t,
    }
