"""Tokenizers that run on Hugging Face's `tokenizers` library, an optional package."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megalite.data.tokenizer_base import Tokenizer, existing_file

END_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
"""How the end of a document is spelled where no configuration names it."""


class BytePairTokenizer(Tokenizer):
    """What runs on a `tokenizers.Tokenizer`."""

    backend: Any

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        found = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.int64) for one in found]

    def decode(self, ids: Sequence[int]) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=False)


class HuggingFaceTokenizer(BytePairTokenizer):
    """A tokenizer.json, in a folder or as a file; or the name of a model that the Hugging Face cache already holds."""

    def __init__(self, model: str | Path) -> None:
        self.path = _tokenizer_json(model)
        self.backend = _backend(lambda library: library.Tokenizer.from_file(str(self.path)), self.path)
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.encode_special_tokens = True
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self._end = next((vocabulary[name] for name in self._end_names() if name in vocabulary), None)
        unknown = getattr(self.backend.model, "unk_token", None)
        self.unknown = vocabulary.get(unknown) if unknown else None

    def _end_names(self) -> Sequence[str]:
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            path = self.path.with_name(name)
            token = json.loads(path.read_text("utf-8")).get("eos_token") if path.is_file() else None
            if token:
                return [token["content"] if isinstance(token, dict) else token]
        return END_NAMES

    @property
    def eod(self) -> int:
        if self._end is None:
            raise ValueError(
                f"{self.path} does not say which token ends a document. "
                f'Name it beside it in tokenizer_config.json: {{"eos_token": "..."}}.'
            )
        return self._end

    def special_tokens(self) -> dict[str, int]:
        added = self.backend.get_added_tokens_decoder()
        return {token.content: i for i, token in added.items() if token.special}

    def describe(self) -> dict[str, Any]:
        return {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "tokenizer.json"}

    def files(self) -> dict[str, Path]:
        beside = [self.path.with_name(name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
        return {"tokenizer.json": self.path, **{path.name: path for path in beside if path.is_file()}}


class GPT2BPETokenizer(BytePairTokenizer):
    """GPT-2's byte-level BPE from vocab.json and merges.txt; eod is <|endoftext|>."""

    def __init__(self, vocab_file: str | Path, merge_file: str | Path) -> None:
        self.vocab_file = existing_file(vocab_file, "--vocab-file", "GPT-2's vocab.json")
        self.merge_file = existing_file(merge_file, "--merge-file", "GPT-2's merges.txt")

        def build(library: Any) -> Any:
            backend = library.Tokenizer(library.models.BPE.from_file(str(self.vocab_file), str(self.merge_file)))
            backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
            backend.decoder = library.decoders.ByteLevel()
            return backend

        self.backend = _backend(build, self.vocab_file)
        self.vocab_size = max(self.backend.get_vocab().values()) + 1

    @property
    def eod(self) -> int:
        end = self.backend.token_to_id("<|endoftext|>")
        if end is None:
            raise ValueError(f"--vocab-file {self.vocab_file} has no <|endoftext|>, which ends a document.")
        return end

    def special_tokens(self) -> dict[str, int]:
        return {"<|endoftext|>": self.eod}

    def describe(self) -> dict[str, Any]:
        return {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": "vocab.json", "merge_file": "merges.txt"}

    def files(self) -> dict[str, Path]:
        return {"vocab.json": self.vocab_file, "merges.txt": self.merge_file}


def _backend(build: Callable[[Any], Any], path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError('this --tokenizer-type needs tokenizers: pip install "megalite[data]"') from error
    try:
        return build(tokenizers)
    except Exception as error:  # The library raises nothing more specific for a file it cannot read.
        raise ValueError(f"{path} is not a file that the tokenizers library reads: {error}") from error


def _tokenizer_json(model: str | Path) -> Path:
    path = Path(model)
    if path.is_file():
        return path
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            return path / "tokenizer.json"
        raise ValueError(
            f"--tokenizer-model {path} holds no tokenizer.json. With tokenizer.model in it use SentencePieceTokenizer, "
            f"with vocab.json and merges.txt GPT2BPETokenizer; transformers' save_pretrained writes a tokenizer.json."
        )
    try:
        import huggingface_hub

        for name in ("tokenizer_config.json", "tokenizer.json"):
            path = Path(huggingface_hub.hf_hub_download(str(model), name, local_files_only=True))
    except (ImportError, OSError, ValueError) as error:
        raise ValueError(
            f"--tokenizer-model {model} is neither a folder nor a tokenizer.json, nor a model in the Hugging Face "
            f"cache; nothing is downloaded."
        ) from error
    return path
