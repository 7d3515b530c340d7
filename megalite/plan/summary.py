"""What the settings amount to, worked out without starting anything: the text of --dry-run."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from megalite.arith.flops import model_flops
from megalite.arith.parameters import count_parameters
from megalite.config.derive import Derived, derive
from megalite.config.offload import Offload
from megalite.config.pipeline import Pipeline
from megalite.config.schema import Config
from megalite.config.show import differences
from megalite.config.size import ModelSize, model_size
from megalite.grid import grid_of
from megalite.plan.rank import RankPlan, rank_plans
from megalite.plan.saving import copied_for_saving
from megalite.schedule.action import Program, text
from megalite.schedule.check import simulate
from megalite.schedule.draw import Picture, draw_text
from megalite.schedule.partition import describe, partition
from megalite.schedule.schedules import placement, schedule_of

_LARGE = 2**17
"""Rows of a vocabulary that weighs in where layers are dealt out by cost."""
_COLUMNS = 110
"""Of a picture in a terminal."""


def summary(config: Config, origins: dict[str, str], world_size: int) -> str:
    """Settings, layout, batch, model, memory, communication and schedule of a valid config."""
    derived = derive(config, world_size)
    vocab = config.tokenizer.vocab_size if config.tokenizer.tokenizer_type == "NullTokenizer" else None
    size = model_size(config.model, vocab_size=vocab or 0)
    known = (
        f"vocabulary {vocab:,}" if vocab else "without embeddings: the vocabulary is known once the tokenizer is read"
    )
    stages = partition(config.model, config.parallel, vocab_size=size.vocab_size)
    by_vocab = vocab is None and stages != partition(config.model, config.parallel, vocab_size=_LARGE)
    dealt = "stages (about: the size of the vocabulary moves layers)" if by_vocab else "stages"
    programs = schedule_of(derived.pipeline, derived.num_micro_batches)
    plans = rank_plans(config, derived, size.vocab_size)
    sections = {
        "settings that are not defaults": differences(config, origins),
        "layout": _layout(config, world_size),
        **({dealt: describe(stages, _placement(derived.pipeline))} if len(stages) > 1 else {}),
        "batch": _batch(config, derived, size),
        f"model ({known})": _model(size, plans),
        "memory of one rank": [*_memory(plans, config.offload), *_copy(plans, config, derived)],
        "communication of one rank and step": [*_traffic(plans), *_hidden(config)],
        f"schedule of a step ({derived.pipeline.schedule})": _schedule(derived, programs),
    }
    return "\n".join(line for title, lines in sections.items() for line in [f"{title}:", *("  " + x for x in lines)])


def _layout(config: Config, world_size: int) -> list[str]:
    grid = grid_of(config.parallel, world_size)
    rows = [f"{axis} {grid.size(axis)}: {_groups(grid.groups(axis))}" for axis in grid.order if grid.size(axis) > 1]
    return [f"{world_size} rank{'s' * (world_size > 1)}, order {'-'.join(grid.order)}", *rows]


def _placement(pipeline: Pipeline) -> tuple[int, ...]:
    return placement(pipeline.schedule, pipeline.num_ranks, pipeline.num_chunks)


def _schedule(derived: Derived, programs: Sequence[Program]) -> list[str]:
    """A single rank's program, or a picture of all; of many micro-batches the first, which show how it goes."""
    pipeline, count = derived.pipeline, derived.num_micro_batches
    most = max(8, 2 * pipeline.num_ranks)
    shown = programs if count <= most else schedule_of(pipeline, most)
    in_all = [f"... {count} micro-batches in all"] * (count > most)
    if len(programs) == 1:
        return [*map(text, shown), *in_all]
    timeline = simulate(list(shown))
    picture = Picture(timeline=timeline, placement=_placement(pipeline))
    drawn = draw_text(picture, columns=_COLUMNS if timeline.length > _COLUMNS else None).splitlines()
    return drawn + [f"{line}: bubble {simulate(list(programs)).bubble:.1%}" for line in in_all]


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


def _model(size: ModelSize, plans: Sequence[RankPlan]) -> list[str]:
    most = max(plan.parameters for plan in plans)
    return [
        f"{count_parameters(size).total:,} parameters, {most:,} on {'each' if len(plans) == 1 else 'the largest'} rank",
        f"{model_flops(size, samples=1):.4g} FLOPs for one sequence, forward and backward",
    ]


def _memory(plans: Sequence[RankPlan], offload: Offload) -> list[str]:
    """Of the rank with most, and then of each."""
    most = max(plans, key=lambda plan: plan.total)
    states = most.states
    lines = [
        f"parameters {_bytes(states.params)}, main parameters {_bytes(states.main_params)}, "
        f"main gradients {_bytes(states.main_grads)}, moments {_bytes(states.moments)}",
        f"activations about {_bytes(most.activations)}",
        f"together about {_bytes(most.total)}",
    ]
    if most.lent:
        lines.insert(1, f"buckets of gradients that are not yet summed {_bytes(most.lent)}")
    if (away := most.away).total:
        where = f"in a file of {offload.offload_dir}" if offload.offload_dir else "on the host"
        lines.append(f"{where}: main parameters {_bytes(away.main_params)}, moments {_bytes(away.moments)}")
    if len(plans) == 1:
        return lines
    each = [
        f"{plan.parameters:,} parameters, micro-batches in flight {plan.in_flight}, together about {_bytes(plan.total)}"
        for plan in plans
    ]
    return [f"most on pipeline rank {plans.index(most)}:", *("  " + line for line in lines), *_of_ranks(each)]


def _copy(plans: Sequence[RankPlan], config: Config, derived: Derived) -> list[str]:
    """What a save beside training writes from."""
    if not (config.checkpoint.save and config.checkpoint.async_save):
        return []
    most = max(copied_for_saving(plan, config, derived) for plan in plans)
    return [f"on the host, for --async-save: a copy of {_bytes(most)}"]


def _hidden(config: Config) -> list[str]:
    """What is sent while something else is computed."""
    under = {
        "sums of gradients under the backward pass": config.parallel.overlap_grad_reduce,
        "gathered parameters under the next forward pass": config.parallel.overlap_param_gather,
        "gradients to the host, and parameters back": config.offload.overlap_cpu_optimizer_d2h_h2d,
    }
    return [f"overlapped: {what}" for what, is_asked in under.items() if is_asked]


def _traffic(plans: Sequence[RankPlan]) -> list[str]:
    each = [
        [
            f"{group}: {sent.calls} x {name.replace('_', '-')}, {_bytes(sent.nbytes)}"
            for group, collectives in plan.traffic.items()
            for name, sent in collectives.items()
        ]
        for plan in plans
    ]
    return (each[0] or ["none"]) if len(plans) == 1 else _of_ranks(["; ".join(lines) for lines in each])


def _of_ranks(texts: list[str]) -> list[str]:
    """A line for each run of pipeline ranks of which the same is to be said."""
    runs = [(text, [rank for rank, _ in run]) for text, run in groupby(enumerate(texts), key=itemgetter(1))]
    return [f"pipeline rank{f's {ranks[0]}-' if ranks[1:] else ' '}{ranks[-1]}: {text}" for text, ranks in runs]


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
