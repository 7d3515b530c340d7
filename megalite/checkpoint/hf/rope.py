"""Rotary settings in both spellings: `rope_theta` and `rope_scaling`, and the `rope_parameters` of transformers 5."""

from typing import Any

from megalite.checkpoint.hf.fields import Fields

_THETA = 10000.0  # what transformers takes where nothing is said


def read_rotary_base(fields: Fields) -> int:
    """The base of the rotary frequencies; every scaling of them is refused, since we could not honour it."""
    sources = {name: fields.take(name, {}) for name in ("rope_parameters", "rope_scaling")}
    bases = {"rope_theta": fields.take("rope_theta")}
    fields.only("partial_rotary_factor", 1.0, default=1.0, because="megalite rotates all of a head")
    for source, settings in sources.items():
        settings = dict(settings)
        kind = settings.pop("rope_type", settings.pop("type", "default"))
        settings.pop("type", None)
        bases[f"{source}.rope_theta"] = settings.pop("rope_theta", None)
        if settings.get("partial_rotary_factor") == 1.0:
            del settings["partial_rotary_factor"]
        if kind != "default":
            fields.refuse(
                f"{source} asks for {kind!r} scaling, with {settings}: megalite has no scaled rotary positions"
            )
        elif settings:
            fields.refuse(f"{source} has {settings}, which megalite has no counterpart for")
    stated = {name: base for name, base in bases.items() if base is not None}
    if len(set(stated.values())) > 1:
        fields.refuse(f"the rotary base is stated twice, and differently: {stated}")
    base = next(iter(stated.values()), _THETA)
    if not isinstance(base, int | float) or base < 1 or base != int(base):
        fields.refuse(f"the rotary base is {base!r}: --rotary-base is a whole number")
        return 1
    return int(base)


def write_rotary_base(base: int) -> dict[str, Any]:
    """The base in both spellings, so that transformers of any age reads it."""
    return {"rope_theta": float(base), "rope_parameters": {"rope_type": "default", "rope_theta": float(base)}}
