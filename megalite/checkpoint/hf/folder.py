"""A Hugging Face model folder as data: config.json and tensors by name, wherever its safetensors files hold them."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"


class ModelFolder:
    """A folder that was read far enough to know its tensors; they are mapped one at a time when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = read_json(path / "config.json")
        self.files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in self._weight_files():
            try:
                with safe_open(file, framework="pt") as source:
                    for name in source.keys():  # noqa: SIM118 (not a mapping)
                        self.files[name] = file
                        self.shapes[name] = tuple(source.get_slice(name).get_shape())
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{file} cannot be read as safetensors: {error}") from error

    def _weight_files(self) -> list[Path]:
        index = self.path / WEIGHTS_INDEX
        if (self.path / WEIGHTS).is_file() and not index.is_file():
            return [self.path / WEIGHTS]
        if not index.is_file():
            pickles = sorted(file.name for file in self.path.glob("*.bin"))
            hint = (
                f" {', '.join(pickles)} would be unpickled, which can run code; save it as safetensors."
                if pickles
                else ""
            )
            raise ValueError(f"{self.path} holds neither {WEIGHTS} nor {WEIGHTS_INDEX}.{hint}")
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise ValueError(f"{index} names files outside its folder: {outside}")
        return [self.path / name for name in names]

    def tensor(self, name: str) -> Tensor:
        """One tensor, as a view of the mapped file."""
        with safe_open(self.files[name], framework="pt") as source:
            return source.get_tensor(name)


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
