"""megatron-core's GPT and Llama with megalite's weights, its tensor parallelism over all ranks of gloo.

Installed beside megalite, never with it: `pip install --no-deps megatron-core`. One thing is changed in it: where it
asks torch.cuda for the current device, it is told the CPU. Its fusions by torch.compile are off, for they gain nothing
on a CPU, and so is its generator of random numbers for CUDA, for nothing is dropped.
"""

import importlib.util
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from plain import Sizes
from torch import Tensor, nn

_MODULES = {
    "embedding.word": "embedding.word_embeddings", "embedding.position": "embedding.position_embeddings",
    "attention_norm": "input_layernorm", "attention.qkv": "self_attention.linear_qkv",
    "attention.out": "self_attention.linear_proj", "mlp_norm": "pre_mlp_layernorm", "mlp.fc1": "mlp.linear_fc1",
    "mlp.fc2": "mlp.linear_fc2", "final_norm": "decoder.final_layernorm", "head": "output_layer",
}  # fmt: skip


def reason_absent() -> str:
    """Why megatron-core cannot take part, or nothing."""
    found = importlib.util.find_spec("megatron") and importlib.util.find_spec("megatron.core")
    return "" if found else "megatron-core is not installed: pip install --no-deps megatron-core"


class Loss(nn.Module):
    """tokens, labels [b, s] -> the mean loss."""

    def __init__(self, model: nn.Module, sizes: Sizes) -> None:
        super().__init__()
        self.model = model
        self.places = torch.arange(sizes.sequence).repeat(sizes.micro_batch, 1)
        self.future = torch.ones(1, 1, sizes.sequence, sizes.sequence, dtype=torch.bool).triu(1)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.model(tokens, self.places, self.future, labels=labels).mean()


def whole_norm(norm: Tensor) -> Tensor:
    """The norm of what is split over the ranks, from the norm of this rank's part."""
    square = norm.square()
    dist.all_reduce(square)
    return square.sqrt()


def megatron_core(sizes: Sizes, ours: dict[str, Tensor]) -> Loss:
    """The model with this rank's part of megalite's weights."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import initialize_rng_tracker
    from megatron.core.transformer import TransformerConfig

    initialize_rng_tracker(inference_rng_tracker=True)  # one that does nothing
    ranks = dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks, create_gloo_process_groups=False)
    norm = "RMSNorm" if sizes.llama else "LayerNorm"
    config = TransformerConfig(
        tensor_model_parallel_size=ranks,
        num_layers=sizes.layers,
        hidden_size=sizes.hidden,
        ffn_hidden_size=sizes.ffn,
        num_attention_heads=sizes.heads,
        num_query_groups=sizes.groups,
        normalization=norm,
        gated_linear_unit=sizes.llama,
        activation_func=F.silu if sizes.llama else partial(F.gelu, approximate="tanh"),
        add_bias_linear=not sizes.llama,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        **dict.fromkeys(("bias_activation_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion"), False),
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization=norm),
        vocab_size=sizes.vocab,
        max_sequence_length=sizes.sequence,
        position_embedding_type="rope" if sizes.llama else "learned_absolute",
        share_embeddings_and_output_weights=not sizes.llama,
    )
    theirs = {_name(name): tensor for name, tensor in ours.items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(theirs.pop(name).reshape(parameter.shape))
    assert not theirs
    return Loss(model, sizes)


def _name(name: str) -> str:
    """megatron-core's name of a parameter of megalite."""
    module, _, kind = name.rpartition(".")
    prefix = ""
    if module.startswith("layers."):
        _, number, module = module.split(".", 2)
        prefix = f"decoder.layers.{number}."
    return f"{prefix}{_MODULES[module]}.{kind}"
