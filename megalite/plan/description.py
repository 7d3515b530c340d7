"""A model as the user tells it: training flags, a preset, or flags that another description came to."""

from collections.abc import Sequence

from megalite.config.cli import parse
from megalite.config.schema import Config
from megalite.config.size import ModelSize, model_size
from megalite.plan.presets import preset_flags

USUAL = ("--micro-batch-size", "1", "--lr", "1e-4", "--train-iters", "1000")
"""What a training must be told and a plan need not."""


def describe(flags: Sequence[str], *, preset: str | None = None, named: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """The settings and the flags of the model alone; later flags overrule a preset's, or those of a model that goes by
    another name. ValueError with every mistake."""
    if preset and named:
        raise ValueError("--preset and --hf-config are two models. Give one.")
    named = preset_flags(preset) if preset else list(named)
    parsed = parse([*USUAL, *named, *flags])
    if parsed.problems:
        raise ValueError("\n".join(map(str, parsed.problems)))
    if missing := [
        name
        for name in ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
        if not getattr(parsed.config.model, name)
    ]:
        asked = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise ValueError(f"No model: {asked} missing. Try --preset llama3-8b.")
    return parsed.config, [*named, *flags]


def described_size(config: Config) -> ModelSize:
    """The model in numbers; without a known vocabulary, GPT-2's."""
    return model_size(config.model, vocab_size=config.tokenizer.vocab_size or 50257)
