"""Every rule that a run's settings must keep, checked at once and before anything is started."""

import os.path
from collections.abc import Callable, Collection
from pathlib import Path

from megalite.config.derive import derive
from megalite.config.options import Option, options
from megalite.config.problem import Problem
from megalite.config.schema import Config
from megalite.rules.course import COURSE_RULES
from megalite.rules.files import FILES_RULES
from megalite.rules.job import Job
from megalite.rules.memory import MEMORY_RULES
from megalite.rules.offload import OFFLOAD_RULES
from megalite.rules.pipeline import PIPELINE_RULES
from megalite.rules.shape import SHAPE_RULES
from megalite.rules.unread import unread


def check(
    config: Config, world_size: int, *, faulty: Collection[str] = (), exists: Callable[[str], bool] = os.path.exists
) -> list[Problem]:
    """Every problem of these settings on this many ranks, in the order of the schema.

    A rule is skipped where a flag that it reads is already at fault (`faulty`: found so while parsing), since its
    verdict would only confuse; all are where --config is, for it may say anything. `exists` says whether a path is
    there.
    """
    bad = set(faulty)
    problems: list[Problem] = []
    if "--config" in bad:
        return problems
    for option in options():
        value = getattr(getattr(config, option.section), option.name)
        if option.flag not in bad and (text := _value_problem(option, value)):
            problems.append(Problem(flags=(option.flag,), text=text))
    bad |= {flag for problem in problems for flag in problem.flags}
    job = Job(config=config, world_size=world_size, exists=exists, read=lambda path: Path(path).read_text("utf-8"))
    for flags, rule in SHAPE_RULES + PIPELINE_RULES + MEMORY_RULES + COURSE_RULES + OFFLOAD_RULES + FILES_RULES:
        if bad.isdisjoint(flags.split()):
            problems += [Problem(flags=tuple(flags.split()), text=text) for text in rule(job)]
    return problems


def notices(config: Config, world_size: int) -> list[str]:
    """What is allowed but has no effect, costs much, or is decided for the user: said once. The config is valid."""
    derived = derive(config, world_size)
    micro_batches, ranks = derived.num_micro_batches, derived.pipeline.num_ranks
    said = {
        "--sequence-parallel has no effect with --tensor-model-parallel-size 1.": (
            config.parallel.sequence_parallel and config.parallel.tensor_model_parallel_size == 1
        ),
        f"A step has {micro_batches} micro-batches, fewer than --pipeline-model-parallel-size {ranks}: ranks wait most "
        "of the time. A larger --global-batch-size gives them work.": micro_batches < ranks,
        "--split is not read with --mock-data, which is cut into three equal parts.": (
            config.data.mock_data and config.data.split is not None
        ),
    }
    return [*(text for text, applies in said.items() if applies), *unread(config)]


def _value_problem(option: Option, value: object) -> str:
    if value is None:
        return f"{option.flag} is missing." if option.required else ""
    within = {"at least": float.__ge__, "above": float.__gt__, "at most": float.__le__, "below": float.__lt__}
    for words, bound in option.bounds:
        if isinstance(value, int | float) and not within[words](float(value), float(bound)):
            limits = " and ".join(f"{words} {bound:g}" for words, bound in option.bounds)
            return f"{option.flag} {value} is out of range: it must be {limits}."
    return ""
