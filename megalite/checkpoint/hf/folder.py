"""A Hugging Face model folder as data: config.json and tensors by name, wherever its files of weights hold them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from megalite.checkpoint.foreign import ForeignTensor
from megalite.checkpoint.hf.fields import read_json
from megalite.checkpoint.tensor_file import DTYPES_BY_CODE
from megalite.checkpoint.torch_file import StoredTensor, read_torch_file

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"


class ModelFolder:
    """A folder that was read far enough to know its tensors; they are mapped one at a time when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = read_json(path / "config.json")
        self.tensors: dict[str, ForeignTensor] = {}
        files, listed = self._weight_files()
        for file in files:
            held = _of_safetensors(file) if file.suffix == ".safetensors" else _of_pickle(file)
            twice = sorted(held.keys() & self.tensors.keys())
            if twice:
                raise ValueError(f"{file.name} and another file of {path} both hold {', '.join(twice[:5])}")
            self.tensors |= held
        misplaced = [
            name for name, file in listed.items() if name not in self.tensors or self.tensors[name].file != file
        ]
        if misplaced:
            raise ValueError(f"the index of {path} places tensors in files that do not hold them: {misplaced[:5]}")

    def _weight_files(self) -> tuple[list[Path], dict[str, Path]]:
        """The files of weights, and where an index says that each tensor is."""
        for single, index in ((WEIGHTS, WEIGHTS_INDEX), (PICKLED, PICKLED_INDEX)):
            if (self.path / index).is_file():
                listed = read_json(self.path / index).get("weight_map")
                if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
                    raise ValueError(f"{self.path / index} holds no weight_map of tensors to files")
                outside = sorted(
                    {name for name in listed.values() if Path(name).name != name or name in ("", "..") or "\\" in name}
                )
                if outside:
                    raise ValueError(f"{self.path / index} names files outside its folder: {outside}")
                files = {name: self.path / name for name in sorted(set(listed.values()))}
                return list(files.values()), {tensor: files[name] for tensor, name in listed.items()}
            if (self.path / single).is_file():
                return [self.path / single], {}
        raise ValueError(f"{self.path} holds none of {WEIGHTS}, {WEIGHTS_INDEX}, {PICKLED} and {PICKLED_INDEX}")

    def complete_names(self, base: str) -> None:
        """Put `base` before all names but the head's, if it stands before none: a model without head was saved."""
        if not any(name.startswith(base) for name in self.tensors):
            self.tensors = {
                name if name.startswith("lm_head.") else base + name: held for name, held in self.tensors.items()
            }


def _of_safetensors(file: Path) -> dict[str, ForeignTensor]:
    def reader(name: str) -> Callable[[], Tensor]:
        def read() -> Tensor:
            with safe_open(file, framework="pt") as source:
                return source.get_tensor(name)

        return read

    held = {}
    try:
        with safe_open(file, framework="pt") as source:
            for name in source.keys():  # noqa: SIM118 (not a mapping)
                part = source.get_slice(name)
                if part.get_dtype() not in DTYPES_BY_CODE:
                    raise ValueError(
                        f"{name} in {file} has the dtype {part.get_dtype()}; megalite has {list(DTYPES_BY_CODE)}"
                    )
                held[name] = ForeignTensor(
                    file=file, shape=tuple(part.get_shape()), dtype=DTYPES_BY_CODE[part.get_dtype()], read=reader(name)
                )
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read as safetensors: {error}") from error
    return held


def _of_pickle(file: Path) -> dict[str, ForeignTensor]:
    """A file of torch.save, read without unpickling."""
    content = read_torch_file(file)
    if not isinstance(content, dict) or not all(isinstance(value, StoredTensor) for value in content.values()):
        raise ValueError(f"{file} does not hold tensors by name")
    return {
        name: ForeignTensor(file=file, shape=value.shape, dtype=value.dtype, read=value.read)
        for name, value in content.items()
    }
