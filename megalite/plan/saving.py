"""What --async-save takes of the host's memory."""

from megalite.config.derive import Derived
from megalite.config.schema import Config
from megalite.plan.rank import RankPlan


def copied_for_saving(plan: RankPlan, config: Config, derived: Derived) -> int:
    """Bytes of the copy that a rank writes from: its even share of what the data parallel ranks hold at its place.

    Weights, main parameters and moments; gradients are not saved. It is as large as the files of the rank.
    """
    owned = 0
    if not config.checkpoint.no_save_optim:
        owned = sum(states.main_params + states.moments for states in (plan.states, plan.away))
    return -(-(plan.states.params + owned * derived.optimizer_shards) // derived.data_parallel_size)
