"""The parts of a layer, made as the settings ask: each variant is a value handed to a constructor."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TypedDict

import torch
from torch import Tensor, nn

from megalite.config.memory import Memory, recomputed_modules, recomputed_regions
from megalite.config.model import Model
from megalite.config.size import ModelSize
from megalite.config.windows import layers_without_rotary, windows
from megalite.gradient import WeightGrads
from megalite.model.attention import Attention, DropoutCore, FusedCore, SoftmaxCore, turned, unturned
from megalite.model.dropout import HiddenDropout
from megalite.model.embedding import LearnedPositions
from megalite.model.layer import Block, Layer, PostNormResidualLayer
from megalite.model.mlp import MLP
from megalite.model.norm import LayerNorm, Norm, RMSNorm
from megalite.model.recompute import Distributed, Recomputed, Whole, chain, recompute, renormalise
from megalite.ops.activation import gelu_exact, gelu_tanh, quick_geglu, squared_relu, swiglu
from megalite.ops.registry import Kernels
from megalite.ops.rotary import Scaling, rotary_table
from megalite.shard import Init
from megalite.tensor_parallel.embedding import VocabParallelEmbedding, VocabParallelHead, VocabShard
from megalite.tensor_parallel.layout import TensorParallel
from megalite.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear

NORMS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


class Common(TypedDict):
    """What all sharded modules are given."""

    layout: TensorParallel
    dtype: torch.dtype
    device: torch.device


class Parts:
    """Makes the parts of one model in one layout."""

    def __init__(
        self,
        m: Model,
        memory: Memory,
        size: ModelSize,
        *,
        layout: TensorParallel,
        weight_grads: WeightGrads,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.m, self.memory, self.size, self.layout, self.weight_grads = m, memory, size, layout, weight_grads
        self.kernels = kernels
        self.common = Common(layout=layout, dtype=dtype, device=device)
        self.windows, self.unturned = windows(m), layers_without_rotary(m)

    def layer(self, number: int) -> Layer:
        dropout = self.m.hidden_dropout
        kind = PostNormResidualLayer if self.m.apply_residual_connection_post_layernorm else Layer
        layer = kind(
            attention_norm=self.norm(self.m.hidden_size),
            attention=self.attention(number),
            attention_dropout=HiddenDropout(dropout, site="attention", layer=number, layout=self.layout),
            mlp_norm=self.norm(self.m.hidden_size),
            mlp=self.mlp(),
            mlp_dropout=HiddenDropout(dropout, site="mlp", layer=number, layout=self.layout),
        )
        modules = recomputed_modules(self.memory)
        if "core_attn" in modules:
            recompute(layer.attention.core)
        if "mlp" in modules:
            recompute(layer.mlp)
        if "layernorm" in modules:
            renormalise(layer.attention_norm, layer.attention)
            renormalise(layer.mlp_norm, layer.mlp)
        return layer

    def blocks(self, layers: Sequence[Layer]) -> list[Block]:
        """What a stage computes one after the other: layers, or regions of layers that are recomputed as a whole."""
        store = Distributed(self.layout.tp) if self.memory.distribute_saved_activations else Whole()
        rest, blocks = iter(layers), list[Block]()
        for count in recomputed_regions(self.memory, len(layers)):
            blocks.append(Recomputed(chain(list(islice(rest, count))), store))
        return blocks + list(rest)

    def norm(self, width: int, *, per_head: bool = False) -> Norm:
        """A norm over the hidden dimension, of which a rank may see some rows, or over one head of its own."""
        return NORMS[self.m.normalization](
            width,
            eps=self.m.norm_epsilon,
            origin=float(self.m.apply_layernorm_1p),
            sum_grad_over_tp=per_head or self.layout.shards_sequence,
            kernels=self.kernels,
            dtype=self.common["dtype"],
            device=self.common["device"],
        )

    def attention(self, number: int) -> Attention:
        groups, heads, head_dim = self.size.num_query_groups, self.size.num_attention_heads, self.size.kv_channels
        return Attention(
            number,
            qkv=self.column((groups, heads // groups + 2, head_dim), split_dim=0, bias=self.size.qkv_bias),
            out=self.to_residual(heads * head_dim),
            core=self.core(number),
            queries_per_group=heads // groups,
            head_dim=head_dim,
            q_norm=self.norm(head_dim, per_head=True) if self.size.qk_norm else nn.Identity(),
            k_norm=self.norm(head_dim, per_head=True) if self.size.qk_norm else nn.Identity(),
            position=unturned if self.unturned[number] else partial(turned, neighbours=self.m.rotary_interleaved),
        )

    def core(self, number: int) -> FusedCore:
        """The plainest core that computes what is asked for."""
        m, window, heads = self.m, self.windows[number], self.size.num_attention_heads
        first_head = self.layout.tp.rank * heads // self.layout.tp.size
        if m.softmax_type == "vanilla" and not m.apply_query_key_layer_scaling:
            if not m.attention_dropout:
                return FusedCore(window=window)
            return DropoutCore(m.attention_dropout, layer=number, first_head=first_head, window=window)
        sink: Tensor | None = None
        if m.softmax_type == "off-by-one":
            sink = torch.zeros(heads // self.layout.tp.size, device=self.common["device"])
        core = SoftmaxCore(
            m.attention_dropout,
            layer=number,
            first_head=first_head,
            window=window,
            coefficient=number + 1.0 if m.apply_query_key_layer_scaling else 1.0,
            sink=sink,
        )
        if self.size.learned_sinks:
            core.learn_sink(heads, init=Init(std=m.init_method_std), **self.common)
        return core

    def mlp(self) -> MLP:
        parts, width = 2 if self.size.gated_mlp else 1, self.size.ffn_hidden_size
        fc1 = self.column((parts, width), split_dim=1, bias=self.size.linear_bias)
        return MLP(fc1=fc1, activation=self.activation(), fc2=self.to_residual(width))

    def activation(self) -> Callable[[Tensor], Tensor]:
        m = self.m
        chosen: dict[Callable[[Tensor], Tensor], bool] = {
            partial(swiglu, kernels=self.kernels): m.swiglu,
            partial(quick_geglu, kernels=self.kernels): m.quick_geglu,
            squared_relu: m.squared_relu,
        }
        otherwise = gelu_exact if m.gelu == "exact" else gelu_tanh
        return next((activation for activation, is_asked in chosen.items() if is_asked), otherwise)

    def column(self, out_shape: tuple[int, ...], *, split_dim: int, bias: bool) -> ColumnParallelLinear:
        """A linear from the residual stream into a tensor-parallel region."""
        hidden = self.m.hidden_size
        init = self.init(math.prod(out_shape), hidden, std=self.m.init_method_std)
        return ColumnParallelLinear(
            hidden,
            out_shape,
            split_dim=split_dim,
            bias=bias,
            init=init,
            weight_grads=self.weight_grads,
            **self.common,
        )

    def to_residual(self, width: int) -> RowParallelLinear:
        """A linear that writes to the residual stream: its std shrinks with depth, for two per layer add up there."""
        hidden, std = self.m.hidden_size, self.m.init_method_std / math.sqrt(2 * self.m.num_layers)
        init = self.init(hidden, width, std=std)
        return RowParallelLinear(
            width, hidden, bias=self.size.linear_bias, init=init, weight_grads=self.weight_grads, **self.common
        )

    def head(self, shard: VocabShard, init: Init, tied: VocabParallelEmbedding | None) -> VocabParallelHead:
        """From the residual stream to logits: by a matrix of its own, or by that of the embedding it is tied to."""
        weight = None if tied is None else tied.weight
        return VocabParallelHead(
            shard, self.m.hidden_size, tied=weight, init=init, weight_grads=self.weight_grads, **self.common
        )

    def positions(self, std: float) -> LearnedPositions:
        count, hidden = self.size.max_position_embeddings, self.m.hidden_size
        return LearnedPositions(count, hidden, init=self.init(count, hidden, std=std), **self.common)

    def rotary(self) -> Tensor:
        return rotary_table(
            self.size.max_position_embeddings,
            self.size.rotary_dim,
            self.m.rotary_base,
            interpolation=self.m.rotary_seq_len_interpolation_factor or 1,
            scaling=Scaling(factor=self.m.rope_scaling_factor) if self.m.use_rope_scaling else None,
            dtype=self.common["dtype"],
            device=self.common["device"],
        )

    def init(self, outputs: int, inputs: int, *, std: float) -> Init:
        """How a matrix starts: normal with this std, or by Xavier's rule (Glorot and Bengio 2010)."""
        if self.m.init_method_xavier_uniform:
            return Init(bound=math.sqrt(6 / (inputs + outputs)))
        return Init(std=std)
