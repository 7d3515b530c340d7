"""What one pipeline rank holds, keeps and sends, in closed form."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from megalite.arith.memory import Keeping, StateBytes, activation_bytes, recomputed_bytes
from megalite.arith.offload import offloaded
from megalite.arith.parameters import count_parameters, layer_matrices
from megalite.arith.part import Part
from megalite.arith.traffic import (
    Again,
    Sent,
    data_parallel_traffic,
    ends_traffic,
    pipeline_traffic,
    tensor_parallel_traffic,
)
from megalite.config.derive import Derived
from megalite.config.memory import recomputed_modules, recomputed_regions
from megalite.config.schema import Config
from megalite.config.size import ModelSize
from megalite.schedule.action import Op, Program
from megalite.schedule.check import peak_kept
from megalite.schedule.partition import Stage
from megalite.schedule.schedules import placement

Groups = dict[str, dict[str, Sent]]
"""By group: each collective."""


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One pipeline rank; the tensor and data parallel ranks at its place are alike."""

    parameters: int
    states: StateBytes
    """On the device."""
    away: StateBytes
    """On the host or a disk."""
    in_flight: int
    """Micro-batches of which it keeps anything, at most; one in two stages counts twice."""
    activations: int
    traffic: Groups

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.states.total + self.activations


def rank_plans(
    config: Config, derived: Derived, size: ModelSize, stages: Sequence[Stage], programs: Sequence[Program]
) -> list[RankPlan]:
    """The plan of each pipeline rank. `size` has the padded vocabulary, `programs` are those of a whole step."""
    pipeline = derived.pipeline
    place = placement(pipeline.schedule, pipeline.num_ranks, pipeline.num_chunks)
    return [
        _plan(config, derived, size, [stage for stage in stages if place[stage.number] == rank], program, place)
        for rank, program in enumerate(programs)
    ]


def _plan(
    config: Config,
    derived: Derived,
    size: ModelSize,
    held: Sequence[Stage],
    program: Program,
    place: Sequence[int],
) -> RankPlan:
    tp = config.parallel.tensor_model_parallel_size
    param_bytes = config.train.param_bytes
    part = Part(
        layers=sum(len(stage.layers) for stage in held),
        embedding=any(stage.embedding for stage in held),
        loss=any(stage.loss for stage in held),
    )
    parameters = count_parameters(size, part).per_rank(tp)
    matrices = part.layers * layer_matrices(size) // tp
    moments = {
        "adam": Fraction(2),
        "sgd": Fraction(config.optimizer.sgd_momentum > 0),
        "muon": 2 - Fraction(matrices, parameters),
    }[config.optimizer.optimizer]
    how, regions = _keeping(config), {s.number: recomputed_regions(config.memory, len(s.layers)) for s in held}
    parts = {s.number: Part(layers=len(s.layers), embedding=s.embedding, loss=s.loss) for s in held}
    kept = {number: activation_bytes(size, how, part, regions[number]) for number, part in parts.items()}
    again = max(recomputed_bytes(size, how, regions[number]) for number in parts)
    here, away = offloaded(
        parameters, config.offload.share, param_bytes=param_bytes, moments=moments, shards=derived.optimizer_shards
    )
    return RankPlan(
        parameters=parameters,
        states=here,
        away=away,
        in_flight=peak_kept(program),
        activations=peak_bytes(program, kept) + again,
        traffic=_traffic(
            *(config, derived, size, part, parameters),
            buckets=_buckets(size, parts.values(), tp, derived.bucket_size),
            neighbours=_neighbours(held, place),
            regions=[n for region in regions.values() for n in region],
        ),
    )


def _keeping(config: Config) -> Keeping:
    model, param_bytes = config.model, config.train.param_bytes
    by_softmax = model.softmax_type != "vanilla" or model.apply_query_key_layer_scaling
    return Keeping(
        micro_batch_size=config.train.micro_batch_size,
        param_bytes=param_bytes,
        hidden_bytes=4 if model.fp32_residual_connection else param_bytes,
        tensor_parallel_size=config.parallel.tensor_model_parallel_size,
        sequence_parallel=config.parallel.sequence_parallel,
        core="dropout" if model.attention_dropout else "softmax" if by_softmax else "fused",
        dropout=model.hidden_dropout > 0,
        recomputed=recomputed_modules(config.memory),
        distributed=config.memory.distribute_saved_activations,
    )


def peak_bytes(program: Program, kept: Mapping[int, int]) -> int:
    """The most that a rank keeps at once, if each stage keeps so much of a micro-batch from its F to its B or W."""
    now = peak = 0
    for action in program:
        now += {Op.F: 1, Op.B: -1, Op.W: -1}.get(action.op, 0) * kept[action.stage]
        peak = max(peak, now)
    return peak


def _neighbours(held: Sequence[Stage], place: Sequence[int]) -> int:
    """How often a stage of this rank is next to one of another rank."""
    beside = [(s.number, s.number + step) for s in held for step in (-1, 1) if 0 <= s.number + step < len(place)]
    return sum(place[mine] != place[other] for mine, other in beside)


def _buckets(size: ModelSize, parts: Iterable[Part], tp: int, bucket_size: int | None) -> int:
    """Gradient buckets of a rank: about one for each so many elements of a stage, and one for a tied matrix."""
    matrix = size.vocab_size * size.hidden_size // tp * size.tied_embeddings
    untied = [count_parameters(size, p).per_rank(tp) - matrix * (p.embedding or p.loss) for p in parts]
    tied = size.tied_embeddings and any(part.embedding or part.loss for part in parts)
    return tied + sum(-(-count // (bucket_size or count)) for count in untied if count)


def _traffic(
    config: Config,
    derived: Derived,
    size: ModelSize,
    part: Part,
    parameters: int,
    buckets: int,
    neighbours: int,
    regions: Sequence[int],
) -> Groups:
    tp, param_bytes = config.parallel.tensor_model_parallel_size, config.train.param_bytes
    step = {
        "neighbours": neighbours,
        "tensor_parallel_size": tp,
        "micro_batch_size": config.train.micro_batch_size,
        "num_micro_batches": derived.num_micro_batches,
    }
    sp = config.parallel.sequence_parallel
    hidden_bytes = 4 if config.model.fp32_residual_connection else param_bytes
    again = Again(
        blocks=2 * sum(regions) + part.layers * ("mlp" in recomputed_modules(config.memory)),
        inputs=len(regions) * config.memory.distribute_saved_activations,
        input_bytes=hidden_bytes,
    )
    at_one_end = part.embedding != part.loss
    return {
        "tp": tensor_parallel_traffic(size, part, again, sequence_parallel=sp, param_bytes=param_bytes, **step),
        "pp": pipeline_traffic(size, sequence_parallel=sp, hidden_bytes=hidden_bytes, **step),
        "ends of pp": ends_traffic(size, tensor_parallel_size=tp, grad_bytes=4) if at_one_end else {},
        "dp": data_parallel_traffic(
            parameters=parameters,
            data_parallel_size=derived.data_parallel_size,
            buckets=buckets,
            grad_bytes=2 if config.parallel.grad_reduce_in_bf16 else 4,
            param_bytes=param_bytes,
            sharded=config.parallel.use_distributed_optimizer,
        ),
    }
