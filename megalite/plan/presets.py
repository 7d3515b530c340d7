"""Named models, as the flags that describe them to the trainer."""

from megalite.config.options import nearest


def _gpt(layers: int, hidden: int, heads: int, *, seq: int = 2048, vocab: int = 50257) -> str:
    """GPT-2 and GPT-3: learned positions, biases, tied embeddings."""
    return (
        f"--num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} --seq-length {seq} "
        f"--max-position-embeddings {seq} --vocab-size {vocab}"
    )


def _llama(layers: int, hidden: int, heads: int, ffn: int, *, groups: int = 0, seq: int, vocab: int) -> str:
    """Llama: rotary positions, RMSNorm, SwiGLU, no biases, no dropout, a head of its own."""
    grouped = f"--group-query-attention --num-query-groups {groups} " if groups else ""
    return (
        f"--num-layers {layers} --hidden-size {hidden} --ffn-hidden-size {ffn} --num-attention-heads {heads} {grouped}"
        f"--seq-length {seq} --max-position-embeddings {seq} --vocab-size {vocab} --position-embedding-type rope "
        "--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
        "--hidden-dropout 0 --attention-dropout 0"
    )


PRESETS = {
    "gpt2-small": _gpt(12, 768, 12, seq=1024),
    "gpt2-medium": _gpt(24, 1024, 16, seq=1024),
    "gpt2-large": _gpt(36, 1280, 20, seq=1024),
    "gpt2-xl": _gpt(48, 1600, 25, seq=1024),
    "gpt3-125m": _gpt(12, 768, 12),
    "gpt3-350m": _gpt(24, 1024, 16),
    "gpt3-760m": _gpt(24, 1536, 16),
    "gpt3-1.3b": _gpt(24, 2048, 16),
    "gpt3-2.7b": _gpt(32, 2560, 32),
    "gpt3-6.7b": _gpt(32, 4096, 32),
    "gpt3-13b": _gpt(40, 5120, 40),
    "gpt3-175b": _gpt(96, 12288, 96),
    "llama2-7b": _llama(32, 4096, 32, 11008, seq=4096, vocab=32000),
    "llama2-13b": _llama(40, 5120, 40, 13824, seq=4096, vocab=32000),
    "llama2-70b": _llama(80, 8192, 64, 28672, groups=8, seq=4096, vocab=32000),
    "llama3-8b": _llama(32, 4096, 32, 14336, groups=8, seq=8192, vocab=128256),
    "llama3-70b": _llama(80, 8192, 64, 28672, groups=8, seq=8192, vocab=128256),
    "llama3-405b": _llama(126, 16384, 128, 53248, groups=8, seq=8192, vocab=128256),
}
"""By the names of --preset."""


def preset_flags(name: str) -> list[str]:
    """The flags of a named model. ValueError with the nearest known name."""
    wanted = name.lower()
    if wanted not in PRESETS:
        near = nearest(wanted, PRESETS)
        raise ValueError(f"--preset {name} is not known. Try {near or 'llama3-8b'}; known are {', '.join(PRESETS)}.")
    return [*PRESETS[wanted].split(), "--tokenizer-type", "NullTokenizer"]
