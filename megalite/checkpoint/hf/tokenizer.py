"""The tokenizer that travels with a checkpoint, in its folder `tokenizer`, and how transformers can open it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sentencepiece

from megalite.checkpoint.disk import write_file

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""What a Hugging Face folder may hold of a tokenizer."""

EXPORTED_FILES = frozenset({*TOKENIZER_FILES, "config.json", "generation_config.json", "sentencepiece"})
"""What an export writes besides weights; `sentencepiece` holds a model that transformers would open wrongly."""

PROBES = (
    "hello world", "  two spaces ", "a  b   c", "\n\nx\n", "\tdef f(x):\n        return x\n", "naïve 漢字 🙂", "ﬁ ½ ①",
    " ", "don't stop, 12345.67!", "import os\nimport sys\n\n\nclass A:\n    pass\n",
)  # fmt: skip
"""Texts on which two readings of one tokenizer tend to differ: spaces, newlines, rare and composed characters."""


@dataclass(frozen=True, kw_only=True)
class ExportedTokenizer:
    """What became of a tokenizer, in a sentence, and its special ids under their names in config.json."""

    note: str
    ids: dict[str, int | None] = field(default_factory=dict)


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The tokenizer of a Hugging Face folder, file by file."""
    return {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}


def describe_tokenizer(files: Mapping[str, bytes]) -> dict[str, str] | None:
    """The arguments of `data.tokenizer.rebuild_tokenizer` for such files; None where it could not open them."""
    if "tokenizer.json" in files:
        return {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "tokenizer.json"}
    if "tokenizer.model" in files and b" 0\n" not in files["tokenizer.model"][:200]:  # else it is tiktoken's text
        return {"tokenizer_type": "SentencePieceTokenizer", "tokenizer_model": "tokenizer.model"}
    if "vocab.json" in files and "merges.txt" in files:
        return {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": "vocab.json", "merge_file": "merges.txt"}
    return None


def export_tokenizer(source: Path, target: Path) -> ExportedTokenizer:
    """Put the tokenizer of a checkpoint into a Hugging Face folder, in a form that AutoTokenizer opens rightly."""
    files = sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else []
    names = {path.name for path in files}
    models = [path for path in files if path.suffix == ".model"]
    if "tokenizer.json" in names or "tokenizer_config.json" in names:
        for name, data in tokenizer_files(source).items():
            write_file(target / name, data)
        return ExportedTokenizer(note="The tokenizer's files were copied.", ids=_ids_of_config(source))
    if models:
        return _export_sentencepiece(models[0], target)
    vocab, merges = ([path for path in files if path.match(pattern)] for pattern in ("*vocab*.json", "*merges*.txt"))
    if vocab and merges:
        return _export_gpt2(vocab[0], merges[0], target)
    held = f"holds only {', '.join(sorted(names))}" if names else "carries none"
    return ExportedTokenizer(note=f"No tokenizer was exported: the checkpoint {held}.")


def _ids_of_config(folder: Path) -> dict[str, int | None]:
    """The ids of the special tokens that tokenizer_config.json names, looked up in tokenizer.json or vocab.json."""
    config, tokens = _json(folder / "tokenizer_config.json"), _json(folder / "tokenizer.json")
    vocabulary = tokens.get("model", {}).get("vocab", {}) or _json(folder / "vocab.json")
    vocabulary = (
        dict(vocabulary) if isinstance(vocabulary, dict) else {piece[0]: i for i, piece in enumerate(vocabulary)}
    )
    vocabulary |= {token["content"]: token["id"] for token in tokens.get("added_tokens", [])}
    ids: dict[str, int | None] = {}
    for role in ("bos_token", "eos_token", "pad_token"):
        token = config.get(role)
        ids[f"{role}_id"] = vocabulary.get(token["content"] if isinstance(token, dict) else token or "")
    return ids


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _export_gpt2(vocab: Path, merges: Path, target: Path) -> ExportedTokenizer:
    """GPT-2's byte-pair files under the names that transformers looks for."""
    end = "<|endoftext|>"
    write_file(target / "vocab.json", vocab.read_bytes())
    write_file(target / "merges.txt", merges.read_bytes())
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": end, "eos_token": end, "unk_token": end}
    write_file(target / "tokenizer_config.json", json.dumps(config, indent=2).encode())
    eod = _json(vocab).get(end)
    note = "The vocabulary and merges were exported as a GPT2Tokenizer."
    return ExportedTokenizer(note=note, ids={"bos_token_id": eod, "eos_token_id": eod, "pad_token_id": None})


def _export_sentencepiece(model: Path, target: Path) -> ExportedTokenizer:
    """A SentencePiece model as a LlamaTokenizer, if transformers then encodes as sentencepiece does; else set aside."""
    exact = sentencepiece.SentencePieceProcessor(model_file=str(model))
    numbers = {"bos": exact.bos_id(), "eos": exact.eos_id(), "unk": exact.unk_id(), "pad": exact.pad_id()}
    config: dict[str, Any] = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": exact.encode("a", out_type=str)[:1] != ["a"],
        "clean_up_tokenization_spaces": False,
        "legacy": False,
        **{f"{role}_token": exact.id_to_piece(i) if i >= 0 else None for role, i in numbers.items()},
    }
    ids = {f"{role}_token_id": numbers[role] if numbers[role] >= 0 else None for role in ("bos", "eos", "pad")}
    write_file(target / "tokenizer.model", model.read_bytes())
    write_file(target / "tokenizer_config.json", json.dumps(config, indent=2).encode())
    try:
        from transformers import LlamaTokenizer
    except ImportError:
        return ExportedTokenizer(
            note="The SentencePiece model was exported as a LlamaTokenizer. That it encodes alike was not checked, as "
            'transformers is not installed: `pip install "megalite[data]"` and export again to know.',
            ids=ids,
        )
    opened = LlamaTokenizer.from_pretrained(target)
    differing = _differing(exact.encode, lambda text: opened.encode(text, add_special_tokens=False))
    if not differing:
        return ExportedTokenizer(
            note="The SentencePiece model was exported as a LlamaTokenizer, which encodes as sentencepiece does.",
            ids=ids,
        )
    (target / "sentencepiece").mkdir()
    (target / "tokenizer.model").rename(target / "sentencepiece" / "tokenizer.model")
    (target / "tokenizer_config.json").unlink()
    return ExportedTokenizer(
        note="No tokenizer for transformers was exported: it would encode some texts in another way than the training "
        f"did, {differing[0]!r} for one. Use sentencepiece/tokenizer.model with the sentencepiece library.",
        ids=ids,
    )


def _differing(a: Callable[[str], list[int]], b: Callable[[str], list[int]]) -> list[str]:
    """The probes that two tokenizers encode differently."""
    return [text for text in PROBES if a(text) != b(text)]
