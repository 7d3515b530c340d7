"""What a rank keeps of its micro-batches at once, as its program goes."""

from collections.abc import Mapping
from typing import Literal

from megalite.arith.kept import Kept
from megalite.arith.memory import BLOCK, LONGEST, Keeping
from megalite.config.memory import recomputed_modules
from megalite.config.schema import Config
from megalite.config.size import query_groups
from megalite.schedule.action import Op, Program


def keeping(config: Config) -> Keeping:
    """What decides how much a layer keeps."""
    model, param_bytes = config.model, config.train.param_bytes
    by_softmax = model.softmax_type != "vanilla" or model.apply_query_key_layer_scaling
    core: Literal["fused", "blocked", "softmax", "dropout"] = "blocked" if _in_blocks(config) else "fused"
    return Keeping(
        micro_batch_size=config.train.micro_batch_size,
        param_bytes=param_bytes,
        hidden_bytes=4 if model.fp32_residual_connection else param_bytes,
        tensor_parallel_size=config.parallel.tensor_model_parallel_size,
        sequence_parallel=config.parallel.sequence_parallel,
        core="dropout" if model.attention_dropout else "softmax" if by_softmax else core,
        dropout=model.hidden_dropout > 0,
        recomputed=recomputed_modules(config.memory),
        distributed=config.memory.distribute_saved_activations,
    )


def _in_blocks(config: Config) -> bool:
    """Whether attention is computed as ops/blocked_attention.py does, on a CPU that was asked for."""
    model = config.model
    return (
        config.parallel.device == "cpu"
        and config.train.param_bytes >= 4
        and model.window_size is None
        and not config.data.reset_attention_mask
        and query_groups(model) == model.num_attention_heads
        and model.seq_length % BLOCK == 0
        and model.seq_length <= LONGEST
    )


def most_saved(program: Program, stages: Mapping[int, Kept]) -> int:
    """From F to the end of B or I, what is computed again included."""
    now = peak = 0
    for action in program:
        stage = stages[action.stage]
        if action.op is Op.F:
            now += stage.after_forward
            peak = max(peak, now)
        elif action.op in (Op.B, Op.I):
            now -= stage.after_forward
            peak = max(peak, now + stage.in_backward)
    return peak


def most_between(program: Program, stages: Mapping[int, Kept]) -> int:
    """From I to W."""
    now = peak = 0
    for action in program:
        now += {Op.I: 1, Op.W: -1}.get(action.op, 0) * stages[action.stage].to_weights
        peak = max(peak, now)
    return peak


def most_at_once(program: Program, stages: Mapping[int, Kept], logits: Mapping[int, int]) -> int:
    """All of it together, with the logits, which become their gradient in place."""
    now = peak = 0
    for action in program:
        stage = stages[action.stage]
        whole = stage.after_forward + logits[action.stage]
        if action.op is Op.F:
            now += whole
            peak = max(peak, now)
        elif action.op in (Op.B, Op.I):
            now -= whole
            peak = max(peak, now + stage.in_backward)
            now += stage.to_weights * (action.op is Op.I)
        elif action.op is Op.W:
            peak = max(peak, now)
            now -= stage.to_weights
    return peak
