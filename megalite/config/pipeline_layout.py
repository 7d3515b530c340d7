"""How --pipeline-model-parallel-layout is read: `E|(t|)*3,tL` is the stages `E`, `t`, `t`, `t` and `tL`."""

import re
import shlex

FLAG = "--pipeline-model-parallel-layout"

_MOST = 100_000
"""Letters of a layout written out; more is a slip of the finger."""


def layout_stages(text: str) -> list[str]:
    """The letters of each stage, without commas and repeats. ValueError says what the text lacks."""
    stages = _written_out(text).split("|")
    letters = "".join(stages)
    if "m" in letters:
        raise ValueError(f"{quoted(text)} has m, a layer that predicts further tokens; here one is predicted. Use t.")
    if unknown := sorted(set(letters) - set("EtL")):
        raise ValueError(
            f"{quoted(text)} has {' '.join(map(repr, unknown))}. It is written with E, t, L and |, and with repeats "
            f"such as t*3 and (t|)*3."
        )
    if letters.count("E") != 1 or letters.count("L") != 1 or not (stages[0][:1] == "E" and stages[-1][-1:] == "L"):
        raise ValueError(f"{quoted(text)} must have one E, first of all, and one L, last of all.")
    return stages


def quoted(text: str) -> str:
    """The flag with its value as a shell takes it."""
    return f"{FLAG} {shlex.quote(text)}"


def to_layout(layers: list[int]) -> str:
    """The text for stages of so many layers: `Et*3|t*3L`."""
    return f"E{'|'.join('t' * count if count < 3 else f't*{count}' for count in layers)}L"


def _written_out(text: str) -> str:
    def repeated(match: re.Match[str]) -> str:
        item, times = match.group(1), int(match.group(2))
        if len(item) * times > _MOST:
            raise ValueError(f"{quoted(text)} repeats {item} {times} times.")
        return item * times

    letters = re.sub(r"[,\s]", "", text)
    while (shorter := re.sub(r"\(([^()]*)\)\*(\d+)", repeated, letters)) != letters:
        letters = shorter
    return re.sub(r"([^()*\d])\*(\d+)", repeated, letters)
