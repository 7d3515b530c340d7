"""Rotary settings in both spellings: `rope_theta` and `rope_scaling`, and the `rope_parameters` of transformers 5."""

from typing import Any

from megalite.checkpoint.hf.family import Settings
from megalite.checkpoint.hf.fields import Fields

_THETA = 10000.0  # what transformers takes where nothing is said
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What --use-rope-scaling takes for granted."""


def read_rotary(fields: Fields) -> Settings:
    """Our rotary settings of a config. A scaling that we cannot express is refused by name."""
    sources = {name: dict(fields.take(name, {})) for name in ("rope_parameters", "rope_scaling")}
    bases = {"rope_theta": fields.take("rope_theta")}
    fields.only("partial_rotary_factor", 1.0, default=1.0, because="the families turn all of a head")
    scalings = []
    for source, settings in sources.items():
        bases[f"{source}.rope_theta"] = settings.pop("rope_theta", None)
        if settings.get("partial_rotary_factor") == 1.0:
            del settings["partial_rotary_factor"]
        scaling = _scaling(source, settings, fields)
        scalings += [scaling] if scaling else []
    if len(scalings) > 1 and scalings[0] != scalings[1]:
        fields.refuse(f"the rotary scaling is stated twice, and differently: {sources}")
    return {"rotary_base": _base(bases, fields), **(scalings[0] if scalings else {})}


def _scaling(source: str, settings: dict[str, Any], fields: Fields) -> Settings:
    """Our settings for one spelling of a scaling; nothing where there is none."""
    kind = settings.pop("rope_type", settings.pop("type", "default"))
    settings.pop("type", None)
    factor = settings.pop("factor", None)
    if kind == "linear" and not settings and isinstance(factor, int | float) and factor == int(factor):
        return {"rotary_seq_len_interpolation_factor": int(factor)}
    if kind == "llama3" and settings == _LLAMA_3 and isinstance(factor, int | float):
        return {"use_rope_scaling": True, "rope_scaling_factor": float(factor)}
    if kind != "default":
        stated = settings if factor is None else {"factor": factor, **settings}
        fields.refuse(
            f"{source} asks for {kind!r} scaling, with {stated}: megalite has 'linear' by a whole number, "
            f"and 'llama3' with {_LLAMA_3}"
        )
    elif settings or factor is not None:
        fields.refuse(f"{source} has {settings or {'factor': factor}}, which megalite has no counterpart for")
    return {}


def _base(bases: dict[str, Any], fields: Fields) -> int:
    stated = {name: base for name, base in bases.items() if base is not None}
    if len(set(stated.values())) > 1:
        fields.refuse(f"the rotary base is stated twice, and differently: {stated}")
    base = next(iter(stated.values()), _THETA)
    if not isinstance(base, int | float) or base < 1 or base != int(base):
        fields.refuse(f"the rotary base is {base!r}: --rotary-base is a whole number")
        return 1
    return int(base)


def write_rotary(fields: Fields) -> dict[str, Any]:
    """The same in both spellings, so that transformers of any age reads it."""
    fields.only("rotary_percent", 1.0, default=1.0, because="the families turn all of a head")
    fields.only("rotary_interleaved", False, default=False, because="the families turn the halves of a head")
    base, interpolation = float(fields.take("rotary_base", 10000)), fields.take("rotary_seq_len_interpolation_factor")
    is_scaled, factor = fields.take("use_rope_scaling", False), fields.take("rope_scaling_factor", 8.0)
    if is_scaled and interpolation:
        fields.refuse("use_rope_scaling beside rotary_seq_len_interpolation_factor: transformers has one scaling")
    scaling: dict[str, Any] = {}
    if interpolation:
        scaling = {"rope_type": "linear", "factor": float(interpolation)}
    elif is_scaled:
        scaling = {"rope_type": "llama3", "factor": factor, **_LLAMA_3}
    return {
        "rope_theta": base,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": base},
        **({"rope_scaling": scaling} if scaling else {}),
    }
