"""The data of a run that has not begun: to build its index before it does, or to see what it would take."""

from collections.abc import Sequence

from megalite.checkpoint.stated import stated_model
from megalite.config.cli import parse
from megalite.config.derive import derive
from megalite.config.from_checkpoint import with_model_of_checkpoint
from megalite.data.tokenizer import build_tokenizer
from megalite.train.datasets import datasets
from megalite.validate import check


def planned_notes(words: Sequence[str], *, ranks: int, keep: bool) -> tuple[str, ...]:
    """What a run says of its data, where it is started with these words on so many ranks.

    `keep` leaves the index where the run will look for it. ValueError lists all that is wrong with the settings.
    """
    parsed = with_model_of_checkpoint(parse(list(words)), stated_model)
    faulty = {flag for problem in parsed.problems for flag in problem.flags}
    problems = parsed.problems + check(parsed.config, ranks, faulty=faulty)
    if problems:
        raise ValueError("\n".join(["the settings of the run are wrong.", *map(str, problems)]))
    config = parsed.config
    return datasets(config, derive(config, ranks), build_tokenizer(**vars(config.tokenizer)), keep=keep).notes
