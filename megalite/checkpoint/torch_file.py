"""Reading what torch.save wrote, in its zip format and in the one before, without running the pickle inside.

zip      NAME/data.pkl the pickle; NAME/data/KEY the bytes of a storage, not compressed; NAME/byteorder
before   four pickles (a magic number, the version, facts of the machine, the data), the list of the keys, then
         for each key the number of elements in 8 bytes and their bytes
"""

import io
import math
import mmap
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megalite.checkpoint.pickle_reader import Inert, Make, Name, plain_key, read_pickle

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_KINDS = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_DTYPES = frozenset(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))


@dataclass(kw_only=True, eq=False)
class Storage:
    """A run of elements in a file. `start` is its first byte; it is found last in the older format."""

    path: Path
    dtype: torch.dtype
    size: int
    start: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredTensor:
    """A tensor that lies in a file."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    def read(self) -> Tensor:
        """The tensor, as a view of the mapped file."""
        if not math.prod(self.shape):
            return torch.empty(self.shape, dtype=self.dtype)
        assert self.storage.start is not None
        width = self.dtype.itemsize
        start, size = self.storage.start + self.offset * width, _span(self.shape, self.stride) * width
        # "c": a private mapping, so that torch may take it for writable; only what is read is loaded.
        data: np.ndarray = np.memmap(self.storage.path, dtype=np.uint8, mode="c", offset=start, shape=(size,))
        if data.ctypes.data % width:
            data = np.array(data)
        return torch.from_numpy(data).view(self.dtype).as_strided(self.shape, self.stride)


def _span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """The elements from the first to the last that a tensor uses."""
    return sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1


def read_torch_file(path: Path, also: Callable[[str], Make | None] = lambda name: None) -> Any:
    """The data of a file of torch.save: plain containers, with a StoredTensor in the place of each tensor.

    `also` says what stands for names beyond those of tensors and containers. Raises ValueError where the pickle names
    anything else, where storages leave the file or tensors their storage.
    """
    known = partial(_known, also=also)
    try:
        if zipfile.is_zipfile(path):
            return _read_zip(path, known)
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _read_before_zip(path, mapped, known)
    except (ValueError, zipfile.BadZipFile, struct.error, EOFError, RuntimeError, LookupError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as a file of torch.save: {error}") from error


def _known(name: str, *, also: Callable[[str], Make | None]) -> Make | None:
    module, _, attribute = name.rpartition(".")
    if module == "__builtin__":  # Python 2's name, which protocol 2 keeps
        name = f"builtins.{attribute}"
    if module == "torch" and (attribute in _KINDS or attribute in _DTYPES):
        return partial(stand_in, name)
    return _MAKES[name] if name in _MAKES else also(name)


def stand_in(name: str, *arguments: Any) -> Inert:
    """What stands for an object of a class that we do not have."""
    return Inert(name=name, arguments=arguments)


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> StoredTensor:
    numbers = (offset, *shape, *stride)
    if not isinstance(storage, Storage) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError("a tensor is described by something else than whole numbers and a storage")
    count = math.prod(shape)
    if len(shape) != len(stride) or (count and (offset + _span(shape, stride) > storage.size or count > storage.size)):
        raise ValueError(
            f"a tensor of shape {shape}, strides {stride} and offset {offset} does not fit its storage of "
            f"{storage.size} elements"
        )
    return StoredTensor(storage=storage, offset=offset, shape=tuple(shape), stride=tuple(stride))


def _of_subclass(rebuild: Any, kind: Any, arguments: Any, state: Any) -> Any:
    if not isinstance(rebuild, Name):
        raise ValueError("a tensor of a class of its own is rebuilt by no known function")
    return rebuild.make(*arguments)


def _bytes(text: Any, encoding: Any) -> bytes:
    """How protocol 2, which torch.save writes, says bytes."""
    if type(text) is not str or encoding != "latin1":
        raise ValueError(f"it asks for text in the encoding {encoding!r}")
    return text.encode("latin1")


def _first(data: Any, *rest: Any) -> Any:
    return data


_MAKES: Mapping[str, Make] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _of_subclass,
    "torch.nn.parameter.Parameter": partial(stand_in, "torch.nn.parameter.Parameter"),
    "torch.Tensor": partial(stand_in, "torch.Tensor"),
    "torch.Size": lambda sizes=(): tuple(sizes),
    "torch.device": partial(stand_in, "torch.device"),
    "collections.OrderedDict": lambda items=(): {plain_key(key): value for key, value in items},
    "collections.defaultdict": lambda *factory: {},
    "builtins.list": lambda items=(): list(items),
    "builtins.tuple": lambda items=(): tuple(items),
    "builtins.dict": lambda items=(): {plain_key(key): value for key, value in items},
    "builtins.set": lambda items=(): set(map(plain_key, items)),
    "builtins.frozenset": lambda items=(): frozenset(map(plain_key, items)),
    "builtins.bytes": lambda: b"",
    "_codecs.encode": _bytes,
}
"""What stands for the names in a file of tensors."""


def _storage(path: Path, reference: Any) -> tuple[str, Storage, tuple[Any, ...]]:
    """The key and the storage of a reference out of the pickle, and what is left of it."""
    tag, kind, key, _, size, *rest = reference
    if tag != "storage" or not isinstance(kind, Name) or type(key) is not str or type(size) is not int or size < 0:
        raise ValueError(f"its pickle refers to something else than a storage: {tag!r}")
    attribute = kind.name.rpartition(".")[2]
    if attribute not in _KINDS:
        raise ValueError(f"it holds a storage of the kind {kind.name}")
    return key, Storage(path=path, dtype=_KINDS[attribute], size=size), tuple(rest)


def _read_zip(path: Path, known: Callable[[str], Make | None]) -> Any:
    length = path.stat().st_size
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        entries = {entry.filename: entry for entry in archive.infolist()}
        roots = [name.removesuffix("data.pkl") for name in entries if name.partition("/")[2] == "data.pkl"]
        if len(roots) != 1:
            raise ValueError("it holds no data.pkl, or several")
        [root] = roots
        for entry in entries.values():
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise ValueError(f"{entry.filename} is compressed, which torch.save never does")
        if f"{root}byteorder" in entries and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("it was written on a machine of the other byte order")

        def stored(reference: Any) -> Storage:
            key, storage, _ = _storage(path, reference)
            entry = entries[f"{root}data/{key}"]
            storage.start = _data_start(file, entry)
            size = storage.size * storage.dtype.itemsize
            if size > entry.file_size or storage.start + size > length:
                raise ValueError(f"storage {key} has {entry.file_size} bytes, and its pickle says {size}")
            return storage

        return read_pickle(io.BytesIO(archive.read(f"{root}data.pkl")), known, stored)


def _data_start(file: io.BufferedReader, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin, behind its own header."""
    file.seek(entry.header_offset)
    header = file.read(30)
    signature, name, extra = struct.unpack("<4s22xHH", header)
    if signature != b"PK\x03\x04":
        raise ValueError(f"{entry.filename} has no header")
    return entry.header_offset + 30 + name + extra


def _read_before_zip(path: Path, mapped: mmap.mmap, known: Callable[[str], Make | None]) -> Any:
    storages: dict[str, Storage] = {}

    def stored(reference: Any) -> Storage:
        key, storage, view = _storage(path, reference)
        if any(part is not None for part in view):
            raise ValueError(f"storage {key} is a view of another one")
        return storages.setdefault(key, storage)

    def read() -> Any:
        return read_pickle(mapped, known, stored)  # type: ignore[arg-type]

    if read() != _MAGIC or read() != _VERSION:
        raise ValueError("it begins with no magic number of torch.save")
    facts = read()
    if not isinstance(facts, dict) or facts.get("little_endian") is not True:
        raise ValueError("it was written on a machine of the other byte order")
    data, keys = read(), read()
    for key in keys:
        [size] = struct.unpack("<q", mapped.read(8))
        storage, start = storages[key], mapped.tell()
        end = start + size * storage.dtype.itemsize
        if size != storage.size or end > len(mapped):
            raise ValueError(f"storage {key} has {size} elements, and its pickle says {storage.size}")
        storage.start = start
        mapped.seek(end)
    if any(storage.start is None for storage in storages.values()):
        raise ValueError("it lists storages that it does not hold")
    return data
