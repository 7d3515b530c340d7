"""The families that we speak, and which one a model belongs to."""

from typing import Any

from megalite.checkpoint.hf.family import Family, Settings
from megalite.checkpoint.hf.gpt2 import GPT_2
from megalite.checkpoint.hf.llama import LLAMA
from megalite.checkpoint.hf.mistral import MISTRAL
from megalite.checkpoint.hf.qwen import QWEN_2, QWEN_3

FAMILIES = {family.model_type: family for family in (GPT_2, LLAMA, MISTRAL, QWEN_2, QWEN_3)}
"""By model_type, in the order in which an export tries them."""


def family_of(config: dict[str, Any]) -> Family:
    """The family of a config.json."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(f"model_type is {model_type!r}; megalite converts {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def family_for(model: Settings, *, asked: str | None, brought: str | None) -> tuple[Family, dict[str, Any]]:
    """The family that expresses our settings, and its config: the one asked for, that of the import, or the first.

    ValueError with the reasons against the one asked for, or against the one that comes nearest.
    """
    if asked is not None:
        return FAMILIES[asked], FAMILIES[asked].write_config(model)
    reasons = []
    for family in sorted(FAMILIES.values(), key=lambda family: family.model_type != brought):
        try:
            return family, family.write_config(model)
        except ValueError as error:
            reasons.append(str(error))
    nearest = min(reasons, key=lambda text: text.count("\n"))
    raise ValueError(f"None of {', '.join(FAMILIES)} can express this model. The nearest says:\n{nearest}")
