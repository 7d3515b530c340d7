"""Reading settings so that each is used, or known to be harmless, or refused by name: none is dropped in silence."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HARMLESS = frozenset({
    "architectures", "model_type", "name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache",
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "tokenizer_class", "pretraining_tp", "id2label",
    "label2id", "return_dict", "problem_type", "chunk_size_feed_forward", "task_specific_params", "finetuning_task",
    "max_length", "min_length", "do_sample", "num_beams", "temperature", "top_k", "top_p", "repetition_penalty",
    "length_penalty", "num_beam_groups", "diversity_penalty", "num_return_sequences", "typical_p",
})  # fmt: skip
"""Fields of a Hugging Face config that say nothing about what the network computes."""

TRAINING_ONLY = frozenset({
    "seq_length", "hidden_dropout", "init_method_std", "embedding_init_method_std", "make_vocab_size_divisible_by",
    "init_method_xavier_uniform", "fp32_residual_connection", "apply_query_key_layer_scaling",
})  # fmt: skip
"""Settings of ours that a trained model no longer needs."""


class Fields:
    """Settings that are being read. Whatever nobody took must be harmless, or empty, or `close` refuses it."""

    def __init__(self, values: Mapping[str, Any], *, harmless: frozenset[str]) -> None:
        self._left = dict(values)
        self._harmless = harmless
        self._problems: list[str] = []

    def take(self, name: str, default: Any = None) -> Any:
        """The value of a field; the default where it is absent or null."""
        value = self._left.pop(name, None)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self.take(name, default)
        if type(value) is int and value > 0:
            return value
        self.refuse(f"{name} must be a whole number above 0, and is {'not there' if value is None else repr(value)}")
        return 1

    def only(self, name: str, allowed: Any, *, default: Any, because: str) -> None:
        """A field that may have one value."""
        value = self.take(name, default)
        if value != allowed:
            self.refuse(f"{name} is {value!r}: {because}")

    def refuse(self, problem: str) -> None:
        """Note what cannot be expressed."""
        self._problems.append(problem)

    def close(self, what: str) -> dict[str, Any]:
        """The harmless rest. Raises ValueError with everything that was refused."""
        rest = {name: value for name, value in self._left.items() if not name.startswith("_")}
        for name, value in rest.items():
            if name not in self._harmless and value not in (None, False, {}, [], ()):
                self.refuse(f"{name} = {value!r} has no counterpart")
        if self._problems:
            raise ValueError("\n".join([f"{what}:", *(f"  {problem}" for problem in self._problems)]))
        return rest


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"there is no {path.name} in {path.parent}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content
