"""The families that we speak, and which one a model belongs to."""

from typing import Any

from megalite.checkpoint.hf.family import Family, Settings
from megalite.checkpoint.hf.llama import LLAMA

FAMILIES = (LLAMA,)
"""In the order in which an export tries them."""


def family_of(config: dict[str, Any]) -> Family:
    """The family of a config.json."""
    known = {family.model_type: family for family in FAMILIES}
    model_type = config.get("model_type")
    if model_type not in known:
        raise ValueError(f"model_type is {model_type!r}; megalite converts {', '.join(known)}")
    return known[model_type]


def family_for(model: Settings) -> tuple[Family, dict[str, Any]]:
    """The first family that can express our settings, and its config. ValueError with the reasons of all."""
    reasons = []
    for family in FAMILIES:
        try:
            return family, family.write_config(model)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("\n".join(reasons))
