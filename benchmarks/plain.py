"""GPT-2 and Llama as one would write them with torch alone: the models that megalite's speed is measured against.

b micro-batch, s sequence, h hidden, d head dim, v vocabulary
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What every contestant is built to."""

    family: str
    """gpt or llama."""
    layers: int
    hidden: int
    heads: int
    groups: int
    """Key and value heads."""
    ffn: int
    sequence: int
    vocab: int
    micro_batch: int

    @property
    def llama(self) -> bool:
        return self.family == "llama"

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def rotary_table(sizes: Sizes) -> Tensor:
    """cos and sin [2, s, d / 2] of Llama's angles."""
    frequency = 10000.0 ** (-torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim)
    angle = torch.arange(sizes.sequence, dtype=torch.float64).outer(frequency)
    return torch.stack([angle.cos(), angle.sin()]).to(torch.float32)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """x [b, n, s, d] turned by its positions."""
    cos, sin = table
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    """Causal self-attention by torch's fused kernel. Under tensor parallelism each rank has its part of the heads."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        bias, width, self.head_dim = not sizes.llama, sizes.groups * sizes.head_dim, sizes.head_dim
        self.q = nn.Linear(sizes.hidden, sizes.hidden, bias=bias)
        self.k = nn.Linear(sizes.hidden, width, bias=bias)
        self.v = nn.Linear(sizes.hidden, width, bias=bias)
        self.out = nn.Linear(sizes.hidden, sizes.hidden, bias=bias)
        self.grouped = sizes.groups != sizes.heads

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        if table is not None:
            q, k = rotate(q, table), rotate(k, table)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.out(y.transpose(1, 2).flatten(2))


class GPTMLP(nn.Module):
    """fc2(gelu(fc1(x)))"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(sizes.hidden, sizes.ffn), nn.Linear(sizes.ffn, sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class LlamaMLP(nn.Module):
    """fc2(silu(gate(x)) * up(x))"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.fc2 = nn.Linear(sizes.ffn, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        norm = nn.RMSNorm if sizes.llama else nn.LayerNorm
        self.attention_norm, self.attention = norm(sizes.hidden, eps=1e-5), Attention(sizes)
        self.mlp_norm, self.mlp = norm(sizes.hidden, eps=1e-5), (LlamaMLP if sizes.llama else GPTMLP)(sizes)

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        return x + self.mlp(self.mlp_norm(x))


class Plain(nn.Module):
    """tokens [b, s] -> logits [b, s, v]. GPT: learned positions, tied head. Llama: rotary positions, untied head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word = nn.Embedding(sizes.vocab, sizes.hidden)
        self.position = None if sizes.llama else nn.Embedding(sizes.sequence, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = (nn.RMSNorm if sizes.llama else nn.LayerNorm)(sizes.hidden, eps=1e-5)
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        if not sizes.llama:
            self.head.weight = self.word.weight
        self.register_buffer("table", rotary_table(sizes) if sizes.llama else None, persistent=False)
        self.register_buffer("places", torch.arange(sizes.sequence), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.word(tokens)
        if self.position is not None:
            x = x + self.position(self.places)
        for layer in self.layers:
            x = layer(x, self.table)
        return self.head(self.norm(x))


def plain_weights(sizes: Sizes, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """megalite's tensors under the names of `Plain`."""
    theirs = {"word.weight": ours["embedding.word.weight"], "head.weight": ours["embedding.word.weight"]}
    if sizes.llama:
        theirs["head.weight"] = ours["head.weight"]
    else:
        theirs["position.weight"] = ours["embedding.position.weight"]
    for name, tensor in ours.items():
        if name.startswith("final_norm"):
            theirs[name.removeprefix("final_")] = tensor
        elif ".qkv." in name:  # per group: its queries, its key, its value
            parts = tensor.split([sizes.heads // sizes.groups, 1, 1], dim=1)
            for letter, part in zip("qkv", parts, strict=True):
                theirs[name.replace("qkv", letter)] = part.flatten(0, 2)
        elif ".fc1." in name:
            for part, half in zip(("gate", "up") if sizes.llama else ("fc1",), tensor, strict=True):
                theirs[name.replace("fc1", part)] = half
        elif name.startswith("layers."):
            theirs[name] = tensor
    return theirs
