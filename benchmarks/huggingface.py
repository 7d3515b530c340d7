"""Hugging Face's GPT-2 and Llama with megalite's weights: the fastest settings that they offer on a CPU."""

import torch
from plain import Sizes, plain_weights
from torch import Tensor, nn

_GPT2 = {
    "word": "transformer.wte", "position": "transformer.wpe", "norm": "transformer.ln_f", "head": "lm_head",
    "attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "mlp_norm": "ln_2",
    "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj",
}  # fmt: skip
_LLAMA = {
    "word": "model.embed_tokens", "norm": "model.norm", "head": "lm_head",
    "attention_norm": "input_layernorm", "attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj", "attention.out": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.fc2": "mlp.down_proj",
}  # fmt: skip


class Logits(nn.Module):
    """tokens [b, s] -> logits [b, s, v], without a cache of keys and values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def huggingface(sizes: Sizes, ours: dict[str, Tensor]) -> nn.Module:
    """The model in training mode, with fused attention and without dropout."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError('this contestant needs transformers: pip install "megalite[data]"') from error
    shared = {"vocab_size": sizes.vocab, "attn_implementation": "sdpa", "use_cache": False}
    shared |= dict.fromkeys(("bos_token_id", "eos_token_id"))
    if sizes.llama:
        config = transformers.LlamaConfig(
            hidden_size=sizes.hidden,
            intermediate_size=sizes.ffn,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.groups,
            max_position_embeddings=sizes.sequence,
            rms_norm_eps=1e-5,
            **shared,
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(
            n_embd=sizes.hidden,
            n_inner=sizes.ffn,
            n_layer=sizes.layers,
            n_head=sizes.heads,
            n_positions=sizes.sequence,
            activation_function="gelu_pytorch_tanh",  # the same function as gelu_new, in one kernel
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
            **shared,
        )
        model = transformers.GPT2LMHeadModel(config)
    model.load_state_dict(_weights(sizes, ours))
    return Logits(model.train())


def _weights(sizes: Sizes, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """megalite's tensors under Hugging Face's names; GPT-2 keeps its matrices transposed, and q, k, v in one."""
    plain, theirs = plain_weights(sizes, ours), {}
    names = _LLAMA if sizes.llama else _GPT2
    if not sizes.llama:
        for name in [name for name in plain if ".attention.q." in name]:
            parts = [plain.pop(name.replace(".q.", f".{letter}.")) for letter in "qkv"]
            plain[name.replace(".q.", ".qkv.")] = torch.cat(parts)
    for name, tensor in plain.items():
        module, _, kind = name.rpartition(".")
        prefix = ""
        if module.startswith("layers."):
            _, number, module = module.split(".", 2)
            prefix = f"{'model.layers' if sizes.llama else 'transformer.h'}.{number}."
        transposed = prefix and not sizes.llama and tensor.dim() == 2
        theirs[f"{prefix}{names[module]}.{kind}"] = tensor.t() if transposed else tensor
    return theirs
