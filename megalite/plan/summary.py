"""What the settings amount to, worked out without starting anything: the text of --dry-run."""

from megalite.arith.flops import model_flops
from megalite.arith.memory import activation_bytes, state_bytes
from megalite.arith.parameters import count_parameters
from megalite.arith.traffic import data_parallel_traffic, tensor_parallel_traffic
from megalite.config.derive import Derived, derive, padded_vocab_size
from megalite.config.schema import Config
from megalite.config.show import differences
from megalite.config.size import ModelSize, model_size
from megalite.grid import grid_of
from megalite.schedule.action import text
from megalite.schedule.partition import describe, partition
from megalite.schedule.schedules import make_schedule, placement


def summary(config: Config, origins: dict[str, str], world_size: int) -> str:
    """Settings, layout, batch, model, memory, communication and schedule of a valid config."""
    derived = derive(config, world_size)
    vocab = config.tokenizer.vocab_size if config.tokenizer.tokenizer_type == "NullTokenizer" else None
    size = model_size(config.model, vocab_size=vocab or 0)
    padded = padded_vocab_size(
        size.vocab_size,
        divisible_by=config.model.make_vocab_size_divisible_by,
        tensor_parallel_size=config.parallel.tensor_model_parallel_size,
    )
    padded_size = model_size(config.model, vocab_size=padded)
    known = (
        f"vocabulary {vocab:,}" if vocab else "without embeddings: the vocabulary is known once the tokenizer is read"
    )
    sections = {
        "settings that are not defaults": differences(config, origins),
        "layout": _layout(config, world_size),
        "batch": _batch(config, derived, size),
        f"model ({known})": _model(config, size, padded_size),
        "memory of one rank": _memory(config, padded_size),
        "communication of one rank and step": _traffic(config, derived, padded_size),
        f"stages ({derived.pipeline.schedule})": _stages(config, derived, vocab or 0),
        "schedule of a step": _schedule(derived),
    }
    return "\n".join(line for title, lines in sections.items() for line in [f"{title}:", *("  " + x for x in lines)])


def _layout(config: Config, world_size: int) -> list[str]:
    grid = grid_of(config.parallel, world_size)
    rows = [f"{axis} {grid.size(axis)}: {_groups(grid.groups(axis))}" for axis in grid.order if grid.size(axis) > 1]
    return [f"{world_size} rank{'s' * (world_size > 1)}, order {'-'.join(grid.order)}", *rows]


def _stages(config: Config, derived: Derived, vocab_size: int) -> list[str]:
    p = derived.pipeline
    stages = partition(config.model, config.parallel, vocab_size=vocab_size)
    return describe(stages, placement(p.schedule, p.num_ranks, p.num_chunks))


def _schedule(derived: Derived, most: int = 8) -> list[str]:
    p, count = derived.pipeline, derived.num_micro_batches
    programs = make_schedule(
        p.schedule,
        num_ranks=p.num_ranks,
        num_micro_batches=min(count, most),
        num_chunks=p.num_chunks,
        group_size=p.group_size,
    )
    return [text(program) for program in programs] + [f"... {count} micro-batches in all"] * (count > most)


def _groups(groups: list[tuple[int, ...]], most: int = 8) -> str:
    shown = [f"[{' '.join(map(str, ranks[:most]))}{' ...' * (len(ranks) > most)}]" for ranks in groups[:most]]
    return " ".join(shown) + " ..." * (len(groups) > most)


def _batch(config: Config, derived: Derived, size: ModelSize) -> list[str]:
    micro, dp, count = config.train.micro_batch_size, derived.data_parallel_size, derived.num_micro_batches
    tokens = derived.global_batch_size * size.seq_length
    return [
        f"{derived.global_batch_size} sequences = micro-batch {micro} x data parallel {dp} x {count} micro-batches",
        f"{tokens:,} tokens a step, {derived.train_iters:,} steps, {derived.train_iters * tokens:,} tokens in all",
        f"{derived.train_samples:,} samples: warm-up ends after {derived.lr_warmup_samples:,.0f}, decay after "
        f"{derived.lr_decay_samples:,}",
    ]


def _model(config: Config, size: ModelSize, padded_size: ModelSize) -> list[str]:
    count = count_parameters(size)
    on_rank = count_parameters(padded_size).per_rank(config.parallel.tensor_model_parallel_size)
    return [
        f"{count.total:,} parameters, {on_rank:,} on each rank",
        f"{model_flops(size, samples=1):.4g} FLOPs for one sequence, forward and backward",
    ]


def _memory(config: Config, size: ModelSize) -> list[str]:
    tp, optimizer = config.parallel.tensor_model_parallel_size, config.optimizer
    moments = 2 if optimizer.optimizer == "adam" else int(optimizer.sgd_momentum > 0)
    param_bytes = 2 if config.train.bf16 else 4
    states = state_bytes(count_parameters(size).per_rank(tp), param_bytes=param_bytes, moments=moments)
    activations = activation_bytes(
        size,
        micro_batch_size=config.train.micro_batch_size,
        param_bytes=param_bytes,
        tensor_parallel_size=tp,
        sequence_parallel=config.parallel.sequence_parallel,
        fused_attention=config.model.attention_dropout == 0,
        dropout=config.model.hidden_dropout > 0,
    )
    return [
        f"parameters {_bytes(states.params)}, main parameters {_bytes(states.main_params)}, "
        f"main gradients {_bytes(states.main_grads)}, moments {_bytes(states.moments)}",
        f"activations about {_bytes(activations)}",
        f"together about {_bytes(states.total + activations)}",
    ]


def _traffic(config: Config, derived: Derived, size: ModelSize) -> list[str]:
    tp, param_bytes = config.parallel.tensor_model_parallel_size, 2 if config.train.bf16 else 4
    parameters = count_parameters(size).per_rank(tp)
    groups = {
        "tp": tensor_parallel_traffic(
            size,
            tensor_parallel_size=tp,
            sequence_parallel=config.parallel.sequence_parallel,
            micro_batch_size=config.train.micro_batch_size,
            num_micro_batches=derived.num_micro_batches,
            param_bytes=param_bytes,
        ),
        "dp": data_parallel_traffic(
            parameters=parameters,
            data_parallel_size=derived.data_parallel_size,
            buckets=-(-parameters // derived.bucket_size) if derived.bucket_size else 1,
            grad_bytes=4,
        ),
    }
    lines = [
        f"{group}: {sent.calls} x {collective.replace('_', '-')}, {_bytes(sent.nbytes)}"
        for group, collectives in groups.items()
        for collective, sent in collectives.items()
    ]
    return lines or ["none"]


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
