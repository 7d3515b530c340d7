"""Bytes that training keeps on one rank: exact for what lives as long as the run, an estimate for activations."""

from dataclasses import dataclass

from megalite.arith.part import Part, whole
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


def state_bytes(parameters: int, *, param_bytes: int, moments: int, shards: int = 1) -> StateBytes:
    """Bytes for this many parameters on a rank: 16 each in fp32 with Adam, 18 in bf16 with main parameters in fp32.

    Where main parameters and moments are in `shards`, one on each data parallel rank, it is 8 + 8/d and 6 + 12/d.
    `param_bytes` is 2 for bf16, 4 for fp32; `moments` is 2 for Adam, 1 for SGD with momentum, 0 for SGD without.
    Main gradients and moments have four bytes, or as many as the parameters if those have more.
    """
    main, owned = max(param_bytes, 4), -(-parameters // shards)
    return StateBytes(
        params=parameters * param_bytes,
        main_params=owned * main if param_bytes < main else 0,
        main_grads=parameters * main,
        moments=owned * main * moments,
    )


def layer_activation_bytes(
    size: ModelSize,
    *,
    micro_batch_size: int,
    param_bytes: int,
    tensor_parallel_size: int,
    sequence_parallel: bool,
    fused_attention: bool,
    dropout: bool,
) -> int:
    """An estimate of what one layer keeps from forward to backward for one micro-batch.

    With 16 bits, dropout and unfused attention it is Korthikanti et al. 2022, table 2: sbh (10 + 24/t + 5as/(ht)) with
    tensor parallelism and (sbh/t) (34 + 5as/h) with sequence parallelism. Grouped queries and gated MLPs follow the
    same reasoning: every input of a matrix product or a non-linearity is kept once, a dropout mask has one byte.
    """
    t, b, beta = tensor_parallel_size, micro_batch_size, param_bytes
    tokens, h, f = size.seq_length * b, size.hidden_size, size.ffn_hidden_size
    replicated = tokens * h * (4 * beta + 2 * dropout)
    kept_in_mlp = size.fc1_width + f
    split = tokens * beta * (size.qkv_width + size.query_width + kept_in_mlp)
    square = size.num_attention_heads * size.seq_length * tokens
    scores = 0 if fused_attention else square * (beta + dropout * (beta + 1))
    return -(-replicated // (t if sequence_parallel else 1)) + -(-(split + scores) // t)


def activation_bytes(
    size: ModelSize,
    part: Part | None = None,
    *,
    micro_batch_size: int,
    param_bytes: int,
    tensor_parallel_size: int,
    sequence_parallel: bool,
    fused_attention: bool,
    dropout: bool,
) -> int:
    """An estimate of what a part keeps of one micro-batch: its layers' activations, the logits and their gradient."""
    part = part or whole(size)
    per_layer = layer_activation_bytes(
        size,
        micro_batch_size=micro_batch_size,
        param_bytes=param_bytes,
        tensor_parallel_size=tensor_parallel_size,
        sequence_parallel=sequence_parallel,
        fused_attention=fused_attention,
        dropout=dropout,
    )
    logits = size.seq_length * micro_batch_size * -(-size.vocab_size // tensor_parallel_size)
    return part.layers * per_layer + part.loss * 2 * logits * max(param_bytes, 4)
