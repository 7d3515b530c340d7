"""What one pipeline rank holds, keeps and sends, in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from megalite.arith.kept import Kept, kept
from megalite.arith.memory import StateBytes
from megalite.arith.offload import offloaded
from megalite.arith.parameters import count_parameters
from megalite.arith.part import Part
from megalite.arith.traffic import (
    Again,
    Sent,
    data_parallel_traffic,
    ends_traffic,
    joined,
    pipeline_traffic,
    tensor_parallel_traffic,
    whole_matrix_traffic,
)
from megalite.config.derive import Derived, padded_vocab_size
from megalite.config.memory import recomputed_modules, recomputed_regions
from megalite.config.schema import Config
from megalite.config.size import ModelSize, model_size
from megalite.plan.activations import keeping, most_at_once, most_between, most_saved
from megalite.plan.buffer import BufferPlan
from megalite.schedule.action import Program
from megalite.schedule.check import peak_kept
from megalite.schedule.partition import Stage, partition
from megalite.schedule.schedules import placement, schedule_of

Groups = dict[str, dict[str, Sent]]
"""By group: each collective."""


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One pipeline rank; the tensor parallel ranks at its place are alike, and so are the data parallel ranks, but for
    the elements that each owns of sums which only some parameters need."""

    parameters: int
    states: StateBytes
    """On the device, padding included."""
    away: StateBytes
    """On the host or a disk."""
    lent: int
    """Bytes of the buckets in which gradients are until they are summed, where only parts of them are kept."""
    in_flight: int
    """Micro-batches of which it keeps anything, at most; one in two stages counts twice."""
    activations: int
    """All that is kept at once: about, for some of it is there for a moment only."""
    saved: int
    """What autograd keeps at most, but for the logits."""
    logits: int
    """They are kept until their gradient takes their place."""
    to_weights: int
    """What a split backward keeps at most from its first half to its second."""
    traffic: Groups

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.states.total + self.lent + self.activations


def rank_plans(config: Config, derived: Derived, vocab_size: int, *, replica: int = 0) -> list[RankPlan]:
    """The plan of each pipeline rank of one replica, for one step."""
    pipeline, tp = derived.pipeline, config.parallel.tensor_model_parallel_size
    padded = padded_vocab_size(
        vocab_size, divisible_by=config.model.make_vocab_size_divisible_by, tensor_parallel_size=tp
    )
    size = model_size(config.model, vocab_size=padded)
    stages = partition(config.model, config.parallel, vocab_size=vocab_size)
    programs = schedule_of(pipeline, derived.num_micro_batches)
    place = placement(pipeline.schedule, pipeline.num_ranks, pipeline.num_chunks)
    held = [[stage for stage in stages if place[stage.number] == rank] for rank in range(len(programs))]
    return [
        _plan(config, derived, size, mine, program, place, replica)
        for mine, program in zip(held, programs, strict=True)
    ]


def _plan(
    config: Config,
    derived: Derived,
    size: ModelSize,
    held: Sequence[Stage],
    program: Program,
    place: Sequence[int],
    replica: int,
) -> RankPlan:
    param_bytes = config.train.param_bytes
    how, regions = keeping(config), {s.number: recomputed_regions(config.memory, len(s.layers)) for s in held}
    parts = {s.number: Part(layers=len(s.layers), embedding=s.embedding, loss=s.loss) for s in held}
    part = Part(
        layers=sum(p.layers for p in parts.values()),
        embedding=any(p.embedding for p in parts.values()),
        loss=any(p.loss for p in parts.values()),
    )
    buffer = BufferPlan(config=config, derived=derived, size=size, stages=list(parts.values()), replica=replica)
    stages = {number: kept(size, how, part, regions[number]) for number, part in parts.items()}
    tokens = size.seq_length * how.micro_batch_size
    wide = tokens * size.vocab_size // how.tensor_parallel_size * param_bytes
    logits = {number: wide * part.loss for number, part in parts.items()}
    here, away = offloaded(
        buffer.elements,
        config.offload.share,
        param_bytes=param_bytes,
        moments=buffer.moments,
        shards=derived.optimizer_shards,
        grad_shards=derived.gradient_shards,
    )
    return RankPlan(
        parameters=count_parameters(size, part).per_rank(config.parallel.tensor_model_parallel_size),
        states=here,
        away=away,
        lent=buffer.lent * max(param_bytes, 4),
        in_flight=peak_kept(program),
        activations=most_at_once(program, stages, logits),
        saved=most_saved(program, stages),
        logits=most_saved(program, {number: Kept(after_forward=each) for number, each in logits.items()}),
        to_weights=most_between(program, stages),
        traffic=_traffic(
            *(config, derived, size, part, buffer),
            neighbours=_neighbours(held, place),
            regions=[n for region in regions.values() for n in region],
        ),
    )


def _neighbours(held: Sequence[Stage], place: Sequence[int]) -> int:
    """How often a stage of this rank is next to one of another rank."""
    beside = [(s.number, s.number + step) for s in held for step in (-1, 1) if 0 <= s.number + step < len(place)]
    return sum(place[mine] != place[other] for mine, other in beside)


def _traffic(
    config: Config,
    derived: Derived,
    size: ModelSize,
    part: Part,
    buffer: BufferPlan,
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
    main_bytes, instances = max(param_bytes, 4), config.parallel.num_distributed_optimizer_instances
    sharing = derived.data_parallel_size // instances
    owed_tp, owed_ends = buffer.owed
    gathered = [len(bucket) for bucket in buffer.with_matrices] if derived.optimizer_shards > 1 else []
    over_dp, over_tp = whole_matrix_traffic(
        buckets=gathered,
        matrices=buffer.matrices,
        data_parallel_size=sharing,
        tensor_parallel_size=tp,
        main_bytes=main_bytes,
    )
    sums = tensor_parallel_traffic(
        size, part, again, sequence_parallel=sp, param_bytes=param_bytes, owed=owed_tp, **step
    )
    over_replicas = partial(
        data_parallel_traffic,
        buckets=len(buffer.buckets),
        grad_bytes=2 if config.parallel.grad_reduce_in_bf16 else main_bytes,
        param_bytes=param_bytes,
        ordered=config.train.deterministic_mode,
    )
    grads = over_replicas(
        parameters=buffer.elements,
        data_parallel_size=sharing,
        sharded=config.parallel.use_distributed_optimizer,
        sums=derived.num_micro_batches if config.parallel.shards_gradients else 1,
    )
    joins = over_replicas(parameters=buffer.elements // sharing, data_parallel_size=instances, sharded=False)
    return {
        "tp": joined(sums, over_tp),
        "pp": pipeline_traffic(size, sequence_parallel=sp, hidden_bytes=hidden_bytes, **step),
        "ends of pp": ends_traffic(owed=owed_ends, grad_bytes=main_bytes),
        "dp": joined(grads, over_dp),
        "instances of the optimizer": joins,
    }
