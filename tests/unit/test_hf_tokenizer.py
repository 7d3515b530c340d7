"""A tokenizer that leaves with a model: transformers opens it as it was used in training, or it is set aside."""

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from megalite.checkpoint.hf.tokenizer import PROBES, describe_tokenizer, export_tokenizer, tokenizer_files

transformers = pytest.importorskip("transformers")

EXACT = {
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "user_defined_symbols": ["\n"],
    "pad_id": 3,
}


def train(folder: Path, **settings: Any) -> sentencepiece.SentencePieceProcessor:
    """A small model in a checkpoint's tokenizer folder."""
    folder.mkdir()
    texts = [path.read_text() for path in sorted(Path(json.__file__).parent.glob("*.py"))]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=420,
        max_sentence_length=100_000, minloglevel=2, **settings,
    )  # fmt: skip
    (folder / "tokenizer.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def model_folder(path: Path) -> Path:
    """As an export finds it: a config.json beside what will be the tokenizer."""
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def test_sentencepiece_that_transformers_can_express(tmp_path: Path) -> None:
    exact = train(tmp_path / "tokenizer", **EXACT)
    target = model_folder(tmp_path / "hf")
    exported = export_tokenizer(tmp_path / "tokenizer", target)
    assert "encodes as sentencepiece does" in exported.note
    assert exported.ids == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    opened = transformers.AutoTokenizer.from_pretrained(target)
    assert (opened.bos_token_id, opened.eos_token_id, opened.pad_token_id) == (1, 2, 3)
    assert len(opened) == exact.get_piece_size()
    for text in (*PROBES, Path(json.__file__).read_text()):
        assert opened.encode(text) == exact.encode(text)
        assert opened.decode(exact.encode(text)) == text


@pytest.mark.parametrize("settings", [{}, {**EXACT, "add_dummy_prefix": True}], ids=["defaults", "prefix"])
def test_sentencepiece_that_it_cannot_express_is_set_aside(tmp_path: Path, settings: dict[str, Any]) -> None:
    """transformers neither normalizes as sentencepiece does, nor puts a prefix before text that starts with a space."""
    train(tmp_path / "tokenizer", **settings)
    target = model_folder(tmp_path / "hf")
    exported = export_tokenizer(tmp_path / "tokenizer", target)
    assert "No tokenizer for transformers was exported" in exported.note
    assert exported.ids["eos_token_id"] == 2
    held = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert held == ["config.json", "sentencepiece/tokenizer.model"]


def _bpe_files(folder: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir()
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([Path(json.__file__).read_text()], vocab_size=400, special_tokens=["<|endoftext|>"])
    bpe.save_model(str(folder))


def test_gpt2_files(tmp_path: Path) -> None:
    _bpe_files(tmp_path / "tokenizer")
    target = model_folder(tmp_path / "hf")
    exported = export_tokenizer(tmp_path / "tokenizer", target)
    opened = transformers.AutoTokenizer.from_pretrained(target)
    assert exported.ids == {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    assert opened.eos_token_id == 0 and opened.pad_token_id is None
    expected = transformers.GPT2Tokenizer.from_pretrained(tmp_path / "tokenizer")
    for text in PROBES:
        assert opened.encode(text) == expected.encode(text) and opened.decode(opened.encode(text)) == text


def test_hugging_face_files_travel_unchanged(tmp_path: Path) -> None:
    _bpe_files(tmp_path / "gpt2")
    tokenizer = transformers.GPT2Tokenizer.from_pretrained(tmp_path / "gpt2", pad_token="<pad>")
    tokenizer.save_pretrained(tmp_path / "in")
    files = tokenizer_files(tmp_path / "in")
    assert {"tokenizer.json", "tokenizer_config.json"} <= files.keys()
    (tmp_path / "tokenizer").mkdir()
    for name, data in files.items():
        (tmp_path / "tokenizer" / name).write_bytes(data)
    target = model_folder(tmp_path / "hf")
    exported = export_tokenizer(tmp_path / "tokenizer", target)
    assert tokenizer_files(target) == files
    opened = transformers.AutoTokenizer.from_pretrained(target)
    assert exported.ids["pad_token_id"] == opened.pad_token_id == len(opened) - 1
    assert exported.ids["eos_token_id"] == opened.eos_token_id == 0


def test_no_tokenizer(tmp_path: Path) -> None:
    target = model_folder(tmp_path / "hf")
    assert "the checkpoint carries none" in export_tokenizer(tmp_path / "tokenizer", target).note
    assert [path.name for path in target.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"tokenizer.json": b"{}", "tokenizer.model": b"\n\x05"}, "HuggingFaceTokenizer"),
        ({"tokenizer.model": b"\n\x0e\n\x05<unk>", "tokenizer_config.json": b"{}"}, "SentencePieceTokenizer"),
        ({"vocab.json": b"{}", "merges.txt": b""}, "GPT2BPETokenizer"),
        ({"tokenizer.model": b"IQ== 0\nIg== 1\n"}, None),
        ({}, None),
    ],
)
def test_which_tokenizer_opens_the_files(files: dict[str, bytes], kind: str | None) -> None:
    description = describe_tokenizer(files)
    assert (description or {}).get("tokenizer_type") == kind
    assert all(value in files for name, value in (description or {}).items() if name != "tokenizer_type")
