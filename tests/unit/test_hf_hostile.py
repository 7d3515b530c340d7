"""Folders that are not what they say: refused in a sentence, before anything is written or read outside."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megalite.checkpoint.hf.importing import import_folder
from tests.families import make
from tools import convert_checkpoint

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    make("llama", folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, whole: Path) -> Path:
    """A copy that a test may spoil."""
    (tmp_path / "hf").mkdir()
    for file in whole.iterdir():
        (tmp_path / "hf" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "hf"


def indexed(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Give the folder an index that `change` altered, or the index that it gives."""
    weight_map = dict.fromkeys(load_file(folder / WEIGHTS), WEIGHTS)
    index = change(weight_map) or {"weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))


NORM = "model.norm.weight"
INDICES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "above": (lambda m: m.update({NORM: "../model.safetensors"}), "names files outside its folder"),
    "absolute": (lambda m: m.update({NORM: "/etc/passwd"}), "names files outside its folder"),
    "below": (lambda m: m.update({NORM: "a/model.safetensors"}), "names files outside its folder"),
    "windows": (lambda m: m.update({NORM: "..\\model.safetensors"}), "names files outside its folder"),
    "the folder": (lambda m: m.update({NORM: ".."}), "names files outside its folder"),
    "a number": (lambda m: m.update({NORM: 3}), "holds no weight_map"),
    "a list": (lambda m: {"weight_map": [WEIGHTS]}, "holds no weight_map"),
    "nothing": (lambda m: {"metadata": {}}, "holds no weight_map"),
    "a file that is not there": (lambda m: m.update({NORM: "b.safetensors"}), "b.safetensors cannot be read"),
    "a tensor that is not there": (lambda m: m.update({"x": WEIGHTS}), r"do not hold them: \['x'\]"),
    "config.json as weights": (lambda m: m.update({NORM: "config.json"}), "cannot be read as a file of torch.save"),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_that_misleads_is_refused(folder: Path, name: str) -> None:
    change, refused = INDICES[name]
    indexed(folder, change)
    with pytest.raises(ValueError, match=refused):
        import_folder(folder, folder.parent / "ours")
    assert not (folder.parent / "ours").exists()


def test_an_index_that_tells_the_truth_is_followed(folder: Path) -> None:
    indexed(folder, lambda m: None)
    import_folder(folder, folder.parent / "ours")


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    save_file({NORM: torch.zeros(48)}, folder / "b.safetensors")
    indexed(folder, lambda m: m.update({NORM: "b.safetensors"}))
    with pytest.raises(ValueError, match=f"both hold {NORM}"):
        import_folder(folder, folder.parent / "ours")


HEADERS: dict[str, Callable[[dict[str, Any], int], Any]] = {
    "beyond the file": lambda h, end: h[NORM].update(data_offsets=[end, end + 192]),
    "a larger shape": lambda h, end: h[NORM].update(shape=[48 * 1024**3]),
    "another shape": lambda h, end: h[NORM].update(shape=[47]),
    "a wider dtype": lambda h, end: h[NORM].update(dtype="F64"),
    "backwards": lambda h, end: h[NORM].update(data_offsets=[192, 0]),
    "into another tensor": lambda h, end: h[NORM].update(data_offsets=[0, 192]),
    "an unknown dtype": lambda h, end: h[NORM].update(dtype="F1"),
    "a negative shape": lambda h, end: h[NORM].update(shape=[-48]),
    "overflow": lambda h, end: h[NORM].update(shape=[2**62, 2**62]),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_lies_is_refused(folder: Path, name: str) -> None:
    data = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    HEADERS[name](header, len(rest))
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + rest)
    with pytest.raises(ValueError, match=r"cannot be read as safetensors"):
        import_folder(folder, folder.parent / "ours")


@pytest.mark.parametrize("length", [0, 7, 8, 100, 1000, -1])
@pytest.mark.parametrize("size", [None, 1 << 40, 2**64 - 1])
def test_a_file_that_is_cut_off_is_refused(folder: Path, length: int, size: int | None) -> None:
    data = (folder / WEIGHTS).read_bytes()
    if size is not None:
        data = size.to_bytes(8, "little") + data[8:]
    (folder / WEIGHTS).write_bytes(data[:length])
    with pytest.raises(ValueError, match=r"cannot be read as safetensors"):
        import_folder(folder, folder.parent / "ours")


def test_weights_that_are_a_program_are_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Program:
        def __reduce__(self) -> Any:
            return (eval, (f"open({str(folder / 'touched')!r}, 'w')",))

    (folder / WEIGHTS).unlink()
    torch.save({NORM: Program()}, folder / "pytorch_model.bin")
    words = f"--from hf --to megalite --load {folder} --save {folder.parent / 'ours'}"
    assert convert_checkpoint.main(words.split()) == 1
    said = capsys.readouterr().err
    assert "unpickling could run code" in said and len(said.splitlines()) == 1
    assert not (folder / "touched").exists() and not (folder.parent / "ours").exists()
