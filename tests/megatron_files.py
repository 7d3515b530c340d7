"""Writes checkpoints of Megatron-LM by hand, in its legacy format, for tests that read them."""

import argparse
import enum
import io
import random
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

VOCAB, PADDED, LAYERS, HIDDEN, HEADS, WIDTH, POSITIONS = 45, 48, 6, 32, 4, 20, 16
GPT: dict[str, Any] = {
    "num_layers": LAYERS,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "kv_channels": 6,
    "max_position_embeddings": POSITIONS,
    "padded_vocab_size": PADDED,
    "vocab_size": VOCAB,
    "position_embedding_type": "learned_absolute",
    "normalization": "LayerNorm",
    "norm_epsilon": 3e-5,
    "add_bias_linear": True,
    "bias_gelu_fusion": True,
    "group_query_attention": False,
    "num_query_groups": 1,
    "swiglu": False,
    "qk_layernorm": False,
    "add_qkv_bias": False,
    "softmax_type": "vanilla",
    "untie_embeddings_and_output_weights": False,
}
LLAMA = GPT | {
    "position_embedding_type": "rope",
    "rotary_base": 500000,
    "use_rope_scaling": True,
    "rope_scaling_factor": 32.0,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "group_query_attention": True,
    "num_query_groups": 2,
    "swiglu": True,
    "untie_embeddings_and_output_weights": True,
}
OTHER = LLAMA | {"add_qkv_bias": True, "qk_layernorm": True, "softmax_type": "learnable", "window_size": (7, 0)}
MODELS = {
    "gpt": GPT,
    "llama": LLAMA,
    "biases in a gated MLP": LLAMA | {"add_bias_linear": True},
    "other": OTHER,
    "layer norms of queries": OTHER | {"normalization": "LayerNorm", "window_attn_skip_freq": [1, 1, 0] * 2},
    "tied llama": LLAMA | {"untie_embeddings_and_output_weights": False},
}
Stages = list[list[list[int]]]
LAYOUTS: dict[str, tuple[int, Stages]] = {
    # tensor parallel size; for each stage its chunks, and their layers
    "one rank": (1, [[[0, 1, 2, 3, 4, 5]]]),
    "tp2": (2, [[[0, 1, 2, 3, 4, 5]]]),
    "pp2": (1, [[[0, 1, 2]], [[3, 4, 5]]]),
    "tp2, uneven pp3": (2, [[[0]], [[1, 2, 3]], [[4, 5]]]),
    "pp2, three chunks": (1, [[[0], [2], [4]], [[1], [3], [5]]]),
    "tp2, pp2, uneven chunks": (2, [[[0], [3, 4]], [[1, 2], [5]]]),
    "an empty stage": (1, [[[0, 1, 2, 3, 4, 5]], [[]]]),
}


def whole(args: dict[str, Any]) -> dict[str, Tensor]:
    """Our tensors of a model, all drawn."""
    groups = args["num_query_groups"] if args["group_query_attention"] else HEADS
    hn, qkv = args["kv_channels"], (groups, HEADS // groups + 2, args["kv_channels"])
    fc1 = (2 if args["swiglu"] else 1, WIDTH)
    norms = ("weight", "bias") if args["normalization"] == "LayerNorm" else ("weight",)
    shapes: dict[str, tuple[int, ...]] = {"embedding.word.weight": (VOCAB, HIDDEN)}
    if args["position_embedding_type"] == "learned_absolute":
        shapes["embedding.position.weight"] = (POSITIONS, HIDDEN)
    for n in range(LAYERS):
        layer: dict[str, tuple[int, ...]] = {
            "attention.qkv.weight": (*qkv, HIDDEN),
            "attention.out.weight": (HIDDEN, HEADS * hn),
            "mlp.fc1.weight": (*fc1, HIDDEN),
            "mlp.fc2.weight": (HIDDEN, WIDTH),
        }
        layer |= {f"{norm}.{kind}": (HIDDEN,) for norm in ("attention_norm", "mlp_norm") for kind in norms}
        if args["qk_layernorm"]:
            layer |= {f"attention.{part}_norm.{kind}": (hn,) for part in "qk" for kind in norms}
        if args["add_bias_linear"] or args["add_qkv_bias"]:
            layer["attention.qkv.bias"] = qkv
        if args["add_bias_linear"]:
            layer |= {"attention.out.bias": (HIDDEN,), "mlp.fc1.bias": fc1, "mlp.fc2.bias": (HIDDEN,)}
        if args["softmax_type"] == "learnable":
            layer["attention.core.sink"] = (HEADS,)
        shapes |= {f"layers.{n}.{name}": shape for name, shape in layer.items()}
    shapes |= {f"final_norm.{kind}": (HIDDEN,) for kind in norms}
    if args["untie_embeddings_and_output_weights"]:
        shapes["head.weight"] = (VOCAB, HIDDEN)
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def part(tensor: Tensor, t: int, tp: int, dim: int = 0) -> Tensor:
    """The range of a dimension that rank t holds."""
    size = tensor.shape[dim] // tp
    return tensor.narrow(dim, t * size, size)


def of_rank(ours: dict[str, Tensor], args: dict[str, Any], t: int, tp: int, layers: list[int], te: bool) -> Any:
    """The layers of one chunk, as rank t holds them."""
    names = {
        "attention_norm": "self_attention.linear_qkv.layer_norm_" if te else "input_layernorm.",
        "mlp_norm": "mlp.linear_fc1.layer_norm_" if te else "pre_mlp_layernorm.",
    }
    held: dict[str, Any] = OrderedDict()
    for local, n in enumerate(layers):
        theirs = f"decoder.layers.{local}"
        for name, tensor in ours.items():
            if not name.startswith(f"layers.{n}."):
                continue
            module, _, kind = name.removeprefix(f"layers.{n}.").rpartition(".")
            if module in names:
                held[f"{theirs}.{names[module]}{kind}"] = tensor
            elif module == "attention.qkv":
                heads = [
                    head for group in part(tensor, t, tp) for head in group
                ]  # q, q, k, v of one group, then the next
                held[f"{theirs}.self_attention.linear_qkv.{kind}"] = torch.cat(heads)
            elif module == "mlp.fc1":
                held[f"{theirs}.mlp.linear_fc1.{kind}"] = torch.cat([part(side, t, tp) for side in tensor])
            elif module in ("attention.out", "mlp.fc2"):
                module = "self_attention.linear_proj" if module == "attention.out" else "mlp.linear_fc2"
                held[f"{theirs}.{module}.{kind}"] = part(tensor, t, tp, 1) if kind == "weight" else tensor
            elif kind == "sink":
                held[f"{theirs}.self_attention.core_attention.softmax_offset"] = part(tensor, t, tp)
            else:
                held[f"{theirs}.self_attention.{module[10]}_layernorm.{kind}"] = tensor
        if te:
            held[f"{theirs}.self_attention.linear_qkv._extra_state"] = io.BytesIO(b"fp8")
            held[f"{theirs}.mlp.linear_fc1._extra_state"] = None
    return held


def padded(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor[-1:].expand(PADDED - VOCAB, -1)])


def write(root: Path, args: dict[str, Any], layout: str, /, *, te: bool = False, **changes: Any) -> dict[str, Tensor]:
    """A checkpoint of iteration 7 under `root`; its tensors in our form."""
    (tp, stages), ours = LAYOUTS[layout], whole(args)
    tied = not args["untie_embeddings_and_output_weights"]
    for p, chunks in enumerate(stages):
        for t in range(tp):
            models = [of_rank(ours, args, t, tp, layers, te) for layers in chunks]
            if p == 0:
                models[0]["embedding.word_embeddings.weight"] = part(padded(ours["embedding.word.weight"]), t, tp)
                if "embedding.position.weight" in ours:
                    models[0]["embedding.position_embeddings.weight"] = ours["embedding.position.weight"]
            if p == len(stages) - 1:
                for kind in ("weight", "bias"):
                    if f"final_norm.{kind}" in ours:
                        models[-1][f"decoder.final_layernorm.{kind}"] = ours[f"final_norm.{kind}"]
                if not tied or p > 0:
                    head = ours["embedding.word.weight" if tied else "head.weight"]
                    models[-1]["output_layer.weight"] = part(padded(head), t, tp)
            sizes = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": len(stages)}
            state = {
                "args": argparse.Namespace(**args, **sizes, consumed_train_samples=70, **around()),
                "checkpoint_version": 3.0,
                "iteration": 7,
                **({"model": models[0]} if len(models) == 1 else {f"model{n}": m for n, m in enumerate(models)}),
                "optimizer": {"state": {0: {"exp_avg": torch.zeros(3), "step": 7}}, "param_groups": [{"lr": 1e-3}]},
                "rng_state": [{"random": random.getstate(), "np": np.random.get_state(), "cpu": torch.get_rng_state()}],
            } | changes
            name = f"mp_rank_{t:02d}" if len(stages) == 1 else f"mp_rank_{t:02d}_{p:03d}"
            (root / "iter_0000007" / name).mkdir(parents=True)
            with megatron_there():
                torch.save(state, root / "iter_0000007" / name / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("7")
    return ours


ENUMS = "megatron.core.transformer.enums"
Backend = enum.Enum("Backend", ["flash", "auto"], module=ENUMS)


@contextmanager
def megatron_there() -> Iterator[None]:
    """Let the classes of Megatron-LM be importable, as they are where its checkpoints are written."""
    with pytest.MonkeyPatch.context() as patch:
        parts = ENUMS.split(".")
        for depth in range(1, len(parts) + 1):
            patch.setitem(sys.modules, ".".join(parts[:depth]), types.ModuleType(parts[depth - 1]))
        sys.modules[ENUMS].Backend = Backend  # type: ignore[attr-defined]
        yield


def around() -> dict[str, Any]:
    """Arguments that are no plain values, of classes that a reader does not have."""
    return {
        "attention_backend": Backend["auto"],
        "params_dtype": torch.bfloat16,
        "activation": torch.nn.functional.silu,
        "save": Path("/checkpoints"),
        "data_path": ["a", "b"],
        "nothing": None,
    }
