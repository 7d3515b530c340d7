"""The .bin/.idx pair: Megatron's bytes, clear errors for damaged files, and a writer that leaves no half pair."""

import hashlib
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megalite.data import indexed_writer
from megalite.data.indexed import IndexedCorpus, bin_path, idx_path, token_dtype
from megalite.data.indexed_writer import IndexedWriter

VALUES = json.loads((Path(__file__).parents[1] / "data/megatron_values.json").read_text())


def write(prefix: Path, documents: list[list[int]], dtype: str = "uint16") -> IndexedCorpus:
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for document in documents:
            writer.add_document(document)
    return IndexedCorpus(prefix)


@pytest.mark.parametrize("name", VALUES["corpora"])
def test_the_bytes_are_megatrons(tmp_path, name):
    values = VALUES["corpora"][name]
    corpus = write(tmp_path / "x", values["docs"])
    assert hashlib.sha256(bin_path(corpus.prefix).read_bytes()).hexdigest() == values["sha256_bin"]
    assert hashlib.sha256(idx_path(corpus.prefix).read_bytes()).hexdigest() == values["sha256_idx"]
    assert [corpus[i].tolist() for i in range(len(corpus))] == values["docs"]


def test_an_empty_document_is_a_boundary_without_a_sequence(tmp_path):
    corpus = write(tmp_path / "x", [[5, 6, 7], [], [8, 9]])
    idx = idx_path(corpus.prefix).read_bytes()
    assert bin_path(corpus.prefix).read_bytes() == bytes.fromhex("05000600070008000900")
    assert len(idx) == 90
    assert struct.unpack("<9sQBQQ", idx[:34]) == (b"MMIDIDX\0\0", 1, 8, 2, 4)
    assert struct.unpack("<2i2q4q", idx[34:]) == (3, 2, 0, 6, 0, 1, 1, 2)
    assert corpus.get(0, 1, 2).tolist() == [6, 7] and corpus.get(1, 1).tolist() == [9]


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_offsets_run_on_from_chunk_to_chunk(tmp_path, chunk, monkeypatch):
    documents = [[1], [], [2, 3], [4, 5, 6], [], [7], [8, 9]]
    whole = idx_path(write(tmp_path / "a", documents).prefix).read_bytes()
    monkeypatch.setattr("megalite.data.indexed_writer.CHUNK", chunk)
    assert idx_path(write(tmp_path / "b", documents).prefix).read_bytes() == whole


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(257, "uint16"), (65499, "uint16"), (65500, "int32"), (65536, "int32"), (65540, "int32"), (129280, "int32")],
)
def test_the_width_follows_from_the_vocabulary(tmp_path, vocab_size, dtype):
    assert token_dtype(vocab_size) == np.dtype(dtype)
    ids = [vocab_size - 1, 0, vocab_size // 2]
    assert write(tmp_path / "x", [ids], dtype)[0].tolist() == ids


@pytest.mark.parametrize(("dtype", "token"), [("uint16", 65536), ("uint16", -1), ("int32", 1 << 31), ("uint8", 256)])
def test_an_id_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path, dtype, token):
    with pytest.raises(ValueError, match=f"do not fit {dtype}"):
        write(tmp_path / "x", [[1, 2], [token]], dtype)
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_the_old_pair_alone(tmp_path):
    write(tmp_path / "x", [[1, 2, 3]])
    with pytest.raises(RuntimeError), IndexedWriter(tmp_path / "x", np.dtype("uint16")) as writer:
        writer.add_document([4])
        raise RuntimeError
    assert IndexedCorpus(tmp_path / "x")[0].tolist() == [1, 2, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.bin", "x.idx"]


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        ([], "bin idx folder"),
        ([".bin"], "folder bin folder idx folder"),
        ([".bin", ".idx"], "folder bin folder idx folder"),
    ],
)
def test_no_file_of_an_old_pair_ever_meets_one_of_the_new(tmp_path, old, expected, monkeypatch):
    """What is renamed reaches the disk in this order; where there was nothing, half a pair is told by itself."""
    for ending in old:
        (tmp_path / f"x{ending}").write_bytes(b"old")
    done, replace = [], os.replace
    monkeypatch.setattr(indexed_writer, "_fsync_folder", lambda folder: done.append("folder"))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append(new.suffix[1:]), replace(old, new)))
    with IndexedWriter(tmp_path / "x", np.dtype("uint16")) as writer:
        writer.add_document([1, 2])
    assert " ".join(done) == expected and IndexedCorpus(tmp_path / "x")[0].tolist() == [1, 2]


def test_leftovers_of_a_killed_writer_are_not_used(tmp_path):
    for ending in ("bin", "lengths", "idx"):
        (tmp_path / f"x.{ending}.partial").write_bytes(b"\1\2\3\4" * 5)
    assert write(tmp_path / "x", [[7]])[0].tolist() == [7]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def test_two_writers_of_one_prefix(tmp_path):
    with IndexedWriter(tmp_path / "x", np.dtype("uint16")) as writer:
        with pytest.raises(ValueError, match="another process is writing"):
            IndexedWriter(tmp_path / "x", np.dtype("uint16"))
        writer.add_document([1])
    assert IndexedCorpus(tmp_path / "x")[0].tolist() == [1]


def header(idx: bytes, offset: int, new: bytes) -> bytes:
    return idx[:offset] + new + idx[offset + len(new) :]


DAMAGE = {
    "magic": ("idx", lambda b: header(b, 0, b"TNTIDX"), "is not a Megatron index"),
    "empty index": ("idx", lambda b: b"", "is not a Megatron index"),
    "cut header": ("idx", lambda b: b[:20], "was cut"),
    "version": ("idx", lambda b: header(b, 9, b"\2"), "version 2"),
    "dtype code": ("idx", lambda b: header(b, 17, b"\x0c"), "dtype code 12"),
    "floats": ("idx", lambda b: header(b, 17, b"\7"), "not token ids"),
    "cut index": ("idx", lambda b: b[:-8], "was cut or overwritten"),
    "longer index": ("idx", lambda b: b + bytes(8), "was cut or overwritten"),
    "documents": ("idx", lambda b: header(b, len(b) - 8, b"\1"), "documents run from sequence 0 to 1"),
    "cut tokens": ("bin", lambda b: b[:-2], "up to byte 10"),
    "no tokens file": ("bin", None, "there is no file .*x.bin"),
    "no index file": ("idx", None, "there is no file .*x.idx"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_pair_is_named(tmp_path, case):
    ending, damage, message = DAMAGE[case]
    write(tmp_path / "x", [[5, 6, 7], [8, 9]])
    path = tmp_path / f"x.{ending}"
    if damage:
        path.write_bytes(damage(path.read_bytes()))
    else:
        path.unlink()
    with pytest.raises(ValueError, match=message) as error:
        IndexedCorpus(tmp_path / "x")
    assert str(tmp_path / "x") in str(error.value)


def test_an_offset_beyond_the_file_is_named(tmp_path):
    write(tmp_path / "x", [[5, 6, 7], [8, 9]])
    path = tmp_path / "x.idx"
    path.write_bytes(header(path.read_bytes(), 34 + 8, struct.pack("<q", -100)))
    with pytest.raises(ValueError, match="sequence 0 at bytes -100"):
        IndexedCorpus(tmp_path / "x")[0]


def test_64_bit_offsets(tmp_path):
    """A sparse file of 4.8 GB: the last document lies beyond what 32 bits can say."""
    lengths = np.array([1_200_000_000, 1_200_000_000, 300])
    ends = np.cumsum(lengths) * 2
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(int(ends[-1]))
        file.seek(int(ends[-2]))
        file.write(np.full(300, 7, np.uint16).tobytes())
    arrays = [lengths.astype("<i4"), np.array([0, *ends[:-1]], "<i8"), np.arange(4, dtype="<i8")]
    (tmp_path / "x.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 3, 4) + b"".join(a.tobytes() for a in arrays)
    )
    corpus = IndexedCorpus(tmp_path / "x")
    assert corpus[2].tolist() == [7] * 300
    assert corpus.get(1, 1_199_999_990, 10).tolist() == [0] * 10


def test_a_negative_length_is_named(tmp_path):
    write(tmp_path / "x", [[5, 6, 7], [8, 9]])
    path = tmp_path / "x.idx"
    path.write_bytes(header(path.read_bytes(), 34, struct.pack("<i", -3)))
    with pytest.raises(ValueError, match=r"x.idx says that sequence 0 has -3 tokens"):
        IndexedCorpus(tmp_path / "x")


WHOLE = [[5, 6, 7], [], [8, 9], [10] * 40]


@given(
    changes=st.lists(st.tuples(st.integers(0, 130), st.binary(max_size=8)), max_size=4),
    length=st.none() | st.integers(0, 140),
    cut_tokens=st.booleans(),
)
@example(changes=[(26, struct.pack("<q", 2**62))], length=None, cut_tokens=False)
@example(changes=[(18, b"\xff" * 8)], length=None, cut_tokens=False)
@example(changes=[(34, struct.pack("<i", 2**31 - 1))], length=None, cut_tokens=False)
@example(changes=[(34 + 12, struct.pack("<q", 1))], length=None, cut_tokens=False)
@settings(max_examples=400)
def test_no_damage_crashes_the_reader(tmp_path_factory, changes, length, cut_tokens):
    """Any bytes in the place of others, any end: every sequence can be read, or a ValueError says why not."""
    folder = tmp_path_factory.mktemp("damaged")
    write(folder / "x", WHOLE)
    idx = (folder / "x.idx").read_bytes()
    for offset, new in changes:
        idx = header(idx, offset, new)
    (folder / "x.idx").write_bytes(idx if length is None else idx[:length])
    if cut_tokens:
        (folder / "x.bin").write_bytes((folder / "x.bin").read_bytes()[:-3])
    try:
        corpus = IndexedCorpus(folder / "x")
        read = [corpus[i] for i in range(len(corpus))]
    except ValueError as error:
        assert str(folder / "x") in str(error)
    else:
        assert [len(tokens) for tokens in read] == corpus.lengths.tolist()
        assert all(corpus.place(i).startswith("document ") for i in range(len(corpus)))


def put(url: str, content: bytes) -> None:
    files, path = url_to_fs(url)
    files.pipe_file(path, content)


def test_a_corpus_behind_a_url(tmp_path):
    corpus = write(tmp_path / "x", WHOLE)
    for ending in ("bin", "idx"):
        put(f"memory://bucket/x.{ending}", (tmp_path / f"x.{ending}").read_bytes())
    remote = IndexedCorpus("memory://bucket/x")
    assert [remote[i].tolist() for i in range(3)] == [corpus[i].tolist() for i in range(3)]
    assert remote.get(2, 3, 5).tolist() == [10] * 5 and remote.get(0, 3, 0).tolist() == []
    assert remote.fingerprint == IndexedCorpus("memory://bucket/x").fingerprint
    put("memory://bucket/x.idx", (tmp_path / "x.idx").read_bytes())
    assert remote.fingerprint != IndexedCorpus("memory://bucket/x").fingerprint


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://bucket/none", "there is no file memory://bucket/none.idx"),
        ("nothing://x", "nothing://x.idx cannot be read: .*nothing"),
    ],
)
def test_a_url_that_cannot_be_read(url, message):
    with pytest.raises(ValueError, match=message):
        IndexedCorpus(url)


def test_a_url_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ValueError, match=r'needs fsspec. Run `pip install "megalite\[remote\]"`'):
        IndexedCorpus("memory://bucket/x")


@pytest.mark.parametrize("failures", [1, 3, 4])
def test_a_store_that_fails_for_a_moment(tmp_path, failures, monkeypatch):
    corpus, waits, faults = write(tmp_path / "x", WHOLE), [], iter([OSError("busy")] * failures)
    for ending in ("bin", "idx"):
        put(f"memory://busy/x.{ending}", (tmp_path / f"x.{ending}").read_bytes())
    remote = IndexedCorpus("memory://busy/x")
    reading = MemoryFileSystem.cat_file

    def fail_first(*arguments, **options):
        if fault := next(faults, None):
            raise fault
        return reading(*arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail_first)
    monkeypatch.setattr("megalite.data.storage.time.sleep", waits.append)
    if failures < 4:
        assert remote[2].tolist() == corpus[2].tolist()
    else:
        with pytest.raises(OSError, match=r"x.bin cannot be read after 4 trials: busy"):
            remote[2]
    assert waits == [1, 4, 16][:failures]


def test_an_object_that_became_shorter_is_noticed(tmp_path):
    write(tmp_path / "x", WHOLE)
    for ending in ("bin", "idx"):
        put(f"memory://cut/x.{ending}", (tmp_path / f"x.{ending}").read_bytes())
    remote = IndexedCorpus("memory://cut/x")
    put("memory://cut/x.bin", b"1234")
    with pytest.raises(OSError, match="gave 0 bytes instead of 4"):
        remote[1]
