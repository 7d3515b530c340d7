"""Boxes of tensors read from a file: any box into any memory, by each of the ways, and headers that lie."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from megalite.checkpoint import tensor_reader
from megalite.checkpoint.tensor_reader import TensorReader

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool]


def any_tensor(rng: random.Random) -> Tensor:
    shape = [rng.randrange(1, 7) for _ in range(rng.randrange(5))]
    return (torch.rand(shape) * 9 - 4).to(rng.choice(DTYPES))


def any_target(box: list[slice], dtype: torch.dtype, rng: random.Random) -> Tensor:
    """Memory for a box: its own, in another order, a part of something, or of another dtype."""
    shape = [cut.stop - cut.start for cut in box]
    dtype = rng.choice([dtype, dtype, torch.float64])
    if rng.random() < 0.3:
        return torch.zeros(shape[::-1], dtype=dtype).permute(list(range(len(shape)))[::-1])
    if shape and rng.random() < 0.3:
        return torch.zeros([*shape[:-1], shape[-1] + 3], dtype=dtype)[..., 2:-1]
    return torch.zeros(shape, dtype=dtype, requires_grad=dtype.is_floating_point)


def test_any_box_of_any_tensor_into_any_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window, and parts worth a call, so small that each way is taken."""
    rng, ways = random.Random(0), Counter[str]()
    for name in ("_fill", "_window"):
        taken = getattr(TensorReader, name)

        def counted(self: TensorReader, *place: Any, name: str = name, taken: Any = taken) -> Any:
            ways[name] += 1
            return taken(self, *place)

        monkeypatch.setattr(TensorReader, name, counted)
    for number in range(400):
        monkeypatch.setattr(tensor_reader, "_WINDOW", rng.choice([16, 64, 1 << 24]))
        monkeypatch.setattr(tensor_reader, "_RUN", rng.choice([1, 8, 1 << 16]))
        tensors = {"a": torch.ones(rng.randrange(1, 4), dtype=torch.uint8), "b": any_tensor(rng), "c": any_tensor(rng)}
        path = tmp_path / f"{number}.safetensors"
        save_file(tensors, path)
        with TensorReader(path) as reader:
            for key, stored in tensors.items():
                firsts = [rng.randrange(n) for n in stored.shape]
                box = [slice(first, rng.randrange(first, n) + 1) for first, n in zip(firsts, stored.shape, strict=True)]
                target = any_target(box, stored.dtype, rng)
                reader.read(key, box, target)
                assert torch.equal(target, stored[tuple(box)].to(target.dtype)), (number, key)
    assert min(ways.values()) > 100 and len(ways) == 2


def with_header(path: Path, header: Any, *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(16))
    return path


def entry(dtype: str = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


LIES: dict[str, Any] = {
    "no JSON": b"{",
    "no object": [1],
    "no entry": {"w": 3},
    "unknown dtype": entry("F7"),
    "beyond the end": entry(shape=(2, 3), offsets=(0, 24)),
    "before the data": entry(offsets=(-16, 0)),
    "backwards": entry(offsets=(16, 0)),
    "fewer bytes than elements": entry(offsets=(0, 12)),
    "negative shape": entry(shape=(-2, -2)),
    "shape of words": entry(shape=("2", 2)),
    "offsets of words": entry(offsets=("0", "16")),
    "fractional shape": entry(shape=(2.0, 2.0)),
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_refused(tmp_path: Path, lie: str) -> None:
    with pytest.raises(ValueError, match="its header does not describe it"):
        TensorReader(with_header(tmp_path / "file", LIES[lie]))


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1, 500, 100_000_001])
def test_a_header_longer_than_the_file_is_not_read(tmp_path: Path, length: int) -> None:
    with pytest.raises(ValueError, match=rf"it claims {length} bytes of the \d+ of the file"):
        TensorReader(with_header(tmp_path / "file", entry(), length=length))
    (tmp_path / "short").write_bytes(b"\x00\x00")
    with pytest.raises(ValueError, match="header"):
        TensorReader(tmp_path / "short")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    path = with_header(tmp_path / "file", entry())
    with TensorReader(path) as reader:
        with pytest.raises(ValueError, match="it holds no x"):
            reader.read("x", [slice(0, 2)], torch.zeros(2))
        path.write_bytes(path.read_bytes()[:-4])  # cut off while it is open
        with pytest.raises(ValueError, match="it ends within a tensor"):
            reader.read("w", [slice(0, 2), slice(0, 2)], torch.zeros(2, 2))
