"""Tensors that do not fit what is asked for: all of them are told together, each as `kind: detail`, and none is let
pass."""

from collections.abc import Iterable, Mapping

_SHOWN = 40
"""Problems of one kind."""

Shapes = Mapping[str, tuple[int, ...]]


def unfit(asked: Shapes, there: Shapes) -> list[str]:
    """What is asked for, by name, and is missing or of another shape."""
    problems = [f"missing: {name}" for name in asked if name not in there]
    return problems + [
        f"wrong shape: {name} is {there[name]} there, and {shape} is asked for"
        for name, shape in asked.items()
        if there.get(name, shape) != shape
    ]


def unexpected(asked: Iterable[str], there: Iterable[str]) -> list[str]:
    """What is there and nobody asks for."""
    wanted = set(asked)
    return [f"unexpected: {name}" for name in there if name not in wanted]


def listed(problems: Iterable[str]) -> str:
    """Each problem once, in lines, grouped by kind, none of the kinds endless."""
    kinds: dict[str, list[str]] = {}
    for problem in dict.fromkeys(problems):
        kinds.setdefault(problem.partition(": ")[0], []).append(f"  {problem}")
    lines = []
    for kind, texts in kinds.items():
        more = len(texts) - _SHOWN
        lines += texts[:_SHOWN] + ([f"  {kind}: {more} more"] if more > 0 else [])
    return "\n".join(lines)


def expect(asked: Shapes, there: Shapes, holder: object, also: Iterable[str] = ()) -> None:
    """ValueError unless `holder` holds just what its settings ask for; `also` are problems of other kinds."""
    problems = [*unfit(asked, there), *unexpected(asked, there), *also]
    if problems:
        raise ValueError(f"{holder} does not hold the tensors that its settings ask for:\n{listed(problems)}")
