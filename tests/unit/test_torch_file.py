"""Files of torch.save read as data: what torch reads there, and nothing that would run."""

import io
import os
import pickle
import random
import struct
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from megalite.checkpoint.pickle_reader import read_pickle
from megalite.checkpoint.torch_file import StoredTensor, read_torch_file

FORMATS = {"zip": True, "before zip": False}


def opened(value: Any) -> Any:
    """The data with its tensors read."""
    if isinstance(value, StoredTensor):
        return value.read()
    if isinstance(value, dict):
        return {key: opened(item) for key, item in value.items()}
    return type(value)(map(opened, value)) if isinstance(value, list | tuple) else value


def equal(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b) and a.stride() == b.stride()
    if isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in b)
    if isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


BASE = torch.arange(60.0).reshape(3, 4, 5)
VALUES = {
    "dtypes": {
        str(dtype): torch.tensor([[1, 0, 3], [4, 5, 6]]).to(dtype)
        for dtype in (
            *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
            *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        )
    },
    "views of one storage": [BASE, BASE[1], BASE[:, 2:], BASE.transpose(0, 2), BASE[..., 3]],
    "odd sizes": {"empty": torch.empty(0, 3), "scalar": torch.tensor(7.5), "byte": torch.ones(1, dtype=torch.uint8)},
    "an odd byte before wider ones": [torch.ones(3, dtype=torch.uint8), BASE.double(), torch.ones(1).bool(), BASE],
    "containers": {
        "text": "naïve 漢字",
        "numbers": [0, -1, 255, 65536, -(2**31), 2**70, 1.5, float("inf")],
        "truth": (True, False, None),
        "nested": {"a": [{"b": ({"c": torch.ones(2)},)}]},
        "bytes": b"\x00\xff",
        3: {1, 2, 3},
        "frozen": frozenset({"x"}),
        "many": list(range(3000)),
    },
}


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", VALUES)
def test_it_is_what_torch_reads(tmp_path: Path, name: str, zipped: bool) -> None:
    torch.save(VALUES[name], tmp_path / "file", _use_new_zipfile_serialization=zipped)
    expected = torch.load(tmp_path / "file", weights_only=False)
    assert equal(opened(read_torch_file(tmp_path / "file")), expected)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_protocol(tmp_path: Path, protocol: int) -> None:
    value = {"a": BASE, "b": VALUES["containers"], "c": "x" * 300}
    torch.save(value, tmp_path / "file", pickle_protocol=protocol)
    assert equal(opened(read_torch_file(tmp_path / "file")), value)


def test_modules_and_dictionaries_with_attributes(tmp_path: Path) -> None:
    state = nn.Linear(3, 2).state_dict()  # an OrderedDict with `_metadata`
    value = {"state": state, "parameter": nn.Parameter(torch.ones(2)), "default": defaultdict(list, a=[1])}
    value["ordered"] = OrderedDict([("x", 1), ("y", torch.zeros(1))])
    torch.save(value, tmp_path / "file")
    read = opened(read_torch_file(tmp_path / "file"))
    assert equal(read, {**value, "state": dict(state), "default": {"a": [1]}, "ordered": dict(value["ordered"])})


class Calls:
    """Pickled as a call of anything."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Odd:
    """A class that a reader does not have."""


MARK = "touched"
HOSTILE = {
    "os.system": (lambda: Calls(os.system, f"touch {MARK}"), r"names posix.system"),
    "eval": (lambda: Calls(eval, f"open({MARK!r}, 'w')"), r"names (builtins|__builtin__).eval"),
    "open": (lambda: Calls(open, MARK, "w"), r"names (_io|io).open"),
    "getattr": (lambda: Calls(getattr, 1, "x"), r"names (builtins|__builtin__).getattr"),
    "in a key": (lambda: {"a": {"b": [torch.ones(1), Calls(os.mkdir, MARK)]}}, r"names posix.mkdir"),
    "in a set": (lambda: {Calls(os.mkdir, MARK)}, r"names posix.mkdir"),
    "a class": (Odd, r"names tests.unit.test_torch_file.Odd"),
    "a module": (lambda: nn.Linear(2, 2), r"names torch.nn.modules.linear.Linear|no name"),
    "torch.load": (lambda: Calls(torch.load, "x"), r"names torch.serialization.load"),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, zipped: bool, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    make, refused = HOSTILE[name]
    torch.save({"x": make()}, "file", _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    with pytest.raises(ValueError, match=refused):
        read_torch_file(Path("file"))
    assert not Path(MARK).exists()


RAW = {
    # a pickle by hand, and why it is refused
    "instance": (b"(S'touch x'\nios\nsystem\n.", "uses INST"),
    "object": (b"(cos\nsystem\nS'touch x'\no.", r"names os.system"),
    "extension": (b"\x80\x02\x82\x01.", "uses EXT1"),
    "a call of text": (b"\x80\x02X\x01\x00\x00\x00xX\x01\x00\x00\x00y\x85R.", "calls what is no name"),
    "a call of a call": (b"\x80\x02cbuiltins\ntuple\n)R)R.", "calls what is no name"),
    "no end": (b"\x80\x02K\x01", "not complete|no end|exhausted"),
    "empty stack": (b"\x80\x02.", "damaged"),
    "no such memory": (b"\x80\x02h\x05.", "damaged"),
    "items of a number": (b"\x80\x02K\x01K\x02a.", "damaged"),
    "more bytes than there are": (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0fabc.", "expected"),
    "a long number": (b"\x80\x02L" + b"9" * 9999 + b"L\n.", "Exceeds the limit|damaged"),
    "a list as a key": (b"\x80\x02}]K\x01s.", "damaged"),
    "a deep tuple as a key": (b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.", "damaged"),
}


@pytest.mark.parametrize("name", RAW)
def test_a_pickle_that_is_no_data_is_refused(name: str) -> None:
    data, refused = RAW[name]
    with pytest.raises(ValueError, match=refused):
        read_pickle(io.BytesIO(data), lambda name: tuple if name == "builtins.tuple" else None, lambda reference: None)


class Rebuilt(Calls):
    """A tensor with other numbers than its own."""

    def __init__(self, tensor: torch.Tensor, offset: Any, shape: Any, stride: Any) -> None:
        super().__init__(
            torch._utils._rebuild_tensor_v2,
            *(torch.storage.TypedStorage(wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype, _internal=True),),
            *(offset, shape, stride, False, OrderedDict()),
        )


LIES = {
    "beyond its storage": (0, (7,), (1,)),
    "an offset beyond": (6, (1,), (1,)),
    "steps beyond": (0, (2, 2), (5, 1)),
    "a terabyte of one number": (0, (1 << 40,), (0,)),
    "before its storage": (-1, (2,), (1,)),
    "backwards": (3, (2,), (-1,)),
    "less than nothing": (0, (-2, -3), (1, 1)),
    "half a number": (0, (1.5,), (1,)),
    "fewer steps than dimensions": (0, (2, 3), (1,)),
    "text": (0, "ab", (1, 1)),
}


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", LIES)
def test_a_tensor_that_lies_about_its_size_is_refused(tmp_path: Path, name: str, zipped: bool) -> None:
    torch.save([Rebuilt(torch.ones(6), *LIES[name])], tmp_path / "file", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"does not fit its storage|something else than whole numbers"):
        read_torch_file(tmp_path / "file")


def rezipped(path: Path, changes: dict[str, bytes | None], compression: int = zipfile.ZIP_STORED) -> None:
    """Write an archive anew, with other contents of some of its entries."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in (entries | changes).items():
            if data is not None:
                archive.writestr(name, data)


@pytest.mark.parametrize(
    ("changes", "compression", "refused"),
    [
        ({"file/data/0": b"\0" * 236}, zipfile.ZIP_STORED, "storage 0 has 236 bytes, and its pickle says 240"),
        ({"file/data/0": None}, zipfile.ZIP_STORED, "file/data/0"),
        ({"file/data.pkl": None}, zipfile.ZIP_STORED, "holds no data.pkl"),
        ({"other/data.pkl": b"."}, zipfile.ZIP_STORED, "or several"),
        ({"file/byteorder": b"big"}, zipfile.ZIP_STORED, "other byte order"),
        ({"file/data/0": b"\0" * 240}, zipfile.ZIP_DEFLATED, "is compressed"),
    ],
)
def test_an_archive_that_lies_is_refused(
    tmp_path: Path, changes: dict[str, bytes | None], compression: int, refused: str
) -> None:
    torch.save([BASE], tmp_path / "file")
    rezipped(tmp_path / "file", changes, compression)
    with pytest.raises(ValueError, match=refused):
        read_torch_file(tmp_path / "file")


def test_the_older_format_that_lies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    torch.save([BASE], path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    assert whole[-248:-240] == struct.pack("<q", 60)
    for size, refused in ((59, "has 59 elements"), (-60, "has -60 elements"), (1 << 62, f"has {1 << 62} elements")):
        path.write_bytes(whole[:-248] + struct.pack("<q", size) + whole[-240:])
        with pytest.raises(ValueError, match=refused):
            read_torch_file(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="has 60 elements"):
        read_torch_file(path)
    path.write_bytes(pickle.dumps(7) + whole)
    with pytest.raises(ValueError, match="no magic number"):
        read_torch_file(path)


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
def test_whatever_is_damaged_is_read_or_refused(tmp_path: Path, zipped: bool) -> None:
    """Never another exception, never more memory than the file asks for, never a code that runs."""
    path, draw = tmp_path / "file", random.Random(5)
    torch.save({"a": BASE, "b": VALUES["containers"]}, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3])):
            damaged[draw.randrange(len(whole) if zipped else len(whole) - 400)] = draw.randrange(256)
        path.write_bytes(damaged[: draw.randrange(len(whole))] if draw.random() < 0.1 else damaged)
        try:
            opened(read_torch_file(path))
        except ValueError:
            refused += 1
    assert refused > 60
