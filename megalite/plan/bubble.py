"""How long a pipeline takes for a step, given the time of each of its stages."""

from collections.abc import Sequence
from functools import lru_cache

from megalite.plan.compute import Pass
from megalite.schedule.action import Action, Op
from megalite.schedule.check import Timeline, simulate
from megalite.schedule.schedules import make_schedule, placement

SIMULATED = 6
"""So many times the pipeline's ranks are the micro-batches that are simulated of a long step: what follows repeats."""


def closed_length(schedule: str, ranks: Sequence[Pass], *, chunks: int, micro_batches: int) -> float:
    """Seconds of a step in closed form. `ranks` has the time of all that each rank does for one micro-batch.

    The slowest rank works through all micro-batches; the others add what the first and the last of them wait for:
    (p-1)/v (F+B), or with a split backward (p-1)(F+I-W) and less, where weight gradients fill the gaps.
    """
    total = [r.forward + r.backward for r in ranks]
    slowest = max(range(len(ranks)), key=total.__getitem__)
    others = sum(total) - total[slowest]
    if schedule == "zb-h1":
        others -= 2 * (sum(r.weights for r in ranks) - ranks[slowest].weights)
    elif schedule == "zb-h2":
        others = max(0.0, others - 3 * (sum(r.weights for r in ranks) - ranks[slowest].weights))
    elif schedule == "zb-v":
        others = max(0.0, sum(r.forward + r.inputs - 2 * r.weights for r in ranks) / 2)
    return micro_batches * total[slowest] + others / (chunks if schedule == "interleaved" else 1)


def simulated_length(schedule: str, stages: Sequence[Pass], *, ranks: int, chunks: int, micro_batches: int) -> float:
    """Seconds of a step by running its schedule on paper; `stages` has the time of each stage, in their order."""
    unit = sum(stage.forward for stage in stages) / len(stages)
    times = tuple(
        (round(stage.forward / unit, 3), round(stage.inputs / unit, 3), round(stage.weights / unit, 3))
        for stage in stages
    )
    shown = min(micro_batches, SIMULATED * ranks)
    length = _timeline(schedule, times, ranks, chunks, shown).length
    place = placement(schedule, ranks, chunks)
    of_rank = [0.0] * ranks
    for rank, stage in zip(place, times, strict=True):
        of_rank[rank] += sum(stage)
    return unit * (length + (micro_batches - shown) * max(of_rank))


def drawn(schedule: str, stages: Sequence[Pass], *, ranks: int, chunks: int, micro_batches: int) -> Timeline:
    """The timeline of the first micro-batches, in milliseconds."""
    times = tuple((1000 * stage.forward, 1000 * stage.inputs, 1000 * stage.weights) for stage in stages)
    return _timeline(schedule, times, ranks, chunks, micro_batches)


@lru_cache(maxsize=4096)
def _timeline(
    schedule: str, times: tuple[tuple[float, float, float], ...], ranks: int, chunks: int, micro_batches: int
) -> Timeline:
    programs = make_schedule(schedule, num_ranks=ranks, num_micro_batches=micro_batches, num_chunks=chunks)

    def cost(action: Action) -> float:
        forward, inputs, weights = times[action.stage]
        match action.op:
            case Op.F:
                return forward
            case Op.I:
                return inputs
            case Op.W:
                return weights
            case _:
                return inputs + weights

    return simulate(programs, cost)
