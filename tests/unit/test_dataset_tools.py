"""Inspecting, merging and preparing token files."""

import re
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from megalite.data import merge as merging
from megalite.data.indexed import IndexedCorpus
from megalite.data.indexed_writer import IndexedWriter
from megalite.data.integrity import faults, length_table
from tools import inspect_dataset, merge_datasets, prepare_cache


def write(prefix: Path, documents: list[list[list[int]]], dtype: str = "uint16") -> str:
    """Documents of sequences."""
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for document in documents:
            if document:
                writer.add_tokens(np.array([token for sequence in document for token in sequence]))
                writer.end_document(np.array([len(sequence) for sequence in document]))
            else:
                writer.add_document([])
    return str(prefix)


def read(prefix: str) -> list[list[list[int]]]:
    corpus = IndexedCorpus(prefix)
    bounds = corpus.documents.tolist()
    return [[corpus[i].tolist() for i in range(a, b)] for a, b in pairwise(bounds)]


CORPORA = {
    "plain": [[[1, 2, 3]], [[4]], [[5, 6]]],
    "sentences": [[[1], [2, 3], [4]], [[5]], [[6, 7], [8]]],
    "empty documents": [[], [[1, 2]], [], [], [[3], [4]], []],
    "nothing": [],
    "only empty": [[], []],
}


@pytest.mark.parametrize("first", CORPORA)
@pytest.mark.parametrize("second", CORPORA)
@pytest.mark.parametrize("limit", [1, 2, 1 << 16])
def test_a_merged_pair_holds_the_documents_of_each(tmp_path, first, second, limit, monkeypatch):
    """Whatever is copied at a time."""
    monkeypatch.setattr(merging, "COPIED", limit)
    monkeypatch.setattr(merging, "DOCUMENTS", limit)
    prefixes = [write(tmp_path / "a", CORPORA[first]), write(tmp_path / "b", CORPORA[second])]
    merging.merge(prefixes, str(tmp_path / "all"))
    assert read(str(tmp_path / "all")) == CORPORA[first] + CORPORA[second]
    write(tmp_path / "at once", CORPORA[first] + CORPORA[second])
    for ending in ("bin", "idx"):
        assert (tmp_path / f"all.{ending}").read_bytes() == (tmp_path / f"at once.{ending}").read_bytes()


def test_merging_a_folder_in_the_widest_dtype(tmp_path, capsys):
    write(tmp_path / "in/b", [[[70000, 1]]], "int32")
    write(tmp_path / "in/a", [[[65535]], []])
    assert merge_datasets.main(["--input", str(tmp_path / "in"), "--output-prefix", str(tmp_path / "out/all")]) == 0
    assert read(str(tmp_path / "out/all")) == [[[65535]], [], [[70000, 1]]]
    assert "all.bin/.idx: 3 documents, 3 tokens of 2 pairs" in capsys.readouterr().out


def test_sequences_that_do_not_lie_in_a_row_are_merged(tmp_path):
    """Other writers may put them in any order, and may have sequences without tokens."""
    (tmp_path / "x.bin").write_bytes(np.array([3, 4, 1, 2], "<u2").tobytes())
    arrays = [np.array([2, 0, 2], "<i4"), np.array([4, 8, 0], "<i8"), np.array([0, 2, 3], "<i8")]
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 3, 3)
    (tmp_path / "x.idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))
    merging.merge([str(tmp_path / "x")], str(tmp_path / "all"))
    assert read(str(tmp_path / "all")) == [[[1, 2]], [[3, 4]]]


def test_offsets_beyond_4_gib_are_merged(tmp_path, monkeypatch):
    """A sparse file of 4.8 GB before a document, without copying it."""
    corpus = IndexedCorpus(write(tmp_path / "x", [[[1, 2]], [[3]]]))
    lengths, boundaries = np.array([1_200_000_000, 1_200_000_000, 300], np.int32), np.arange(4)
    with IndexedWriter(tmp_path / "all", np.dtype("uint16")) as writer:
        writer._bin.truncate(2 * int(lengths.sum(dtype=np.int64)))
        writer._bin.seek(0, 2)
        writer.end_documents(*merging._documents(lengths, boundaries))
        writer.add_documents(corpus.run(range(2)), corpus.lengths)
    merged = IndexedCorpus(tmp_path / "all")
    assert merged.tokens == 2_400_000_303 and merged[3].tolist() == [1, 2] and merged[4].tolist() == [3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--input a a --output-prefix a", "is one of the inputs"),
        ("--input nothing --output-prefix all", "there is no file"),
        ("--input half --output-prefix all", "y has only one of .bin and .idx"),
        ("--input none --output-prefix all", "holds no .bin/.idx pair"),
        ("--input a broken --output-prefix all", "was cut or overwritten"),
    ],
)
def test_what_cannot_be_merged(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    write(Path("a"), CORPORA["plain"])
    write(Path("half/x"), CORPORA["plain"])
    Path("half/y.bin").write_bytes(b"")
    Path("none").mkdir()
    write(Path("broken"), CORPORA["plain"])
    Path("broken.idx").write_bytes(Path("broken.idx").read_bytes()[:-1])
    assert merge_datasets.main(words.split()) == 1
    assert message in capsys.readouterr().err and not list(Path().glob("all*"))


def patched(prefix: str, offset: int, new: bytes) -> str:
    path = Path(f"{prefix}.idx")
    idx = path.read_bytes()
    path.write_bytes(idx[:offset] + new + idx[offset + len(new) :])
    return prefix


def longer(prefix: str) -> str:
    with Path(f"{prefix}.bin").open("ab") as file:
        file.write(b"1234")
    return prefix


TWO = [[[5, 6, 7]], [[8], [9]]]
"""Its .idx: lengths from byte 34 on, offsets from 46, documents from 70."""
FAULTS = {
    "none": (lambda p: p, None, None),
    "within the vocabulary": (lambda p: p, 10, None),
    "an offset": (
        lambda p: patched(p, 54, struct.pack("<q", 2)),
        None,
        r"document 1 begins at byte 2, .* 6",
    ),
    "tokens left over": (longer, None, "4 bytes after the last token"),
    "documents that fall": (lambda p: patched(p, 78, struct.pack("<q", 9)), None, "document 1 ends before it begins"),
    "an id": (lambda p: p, 8, r"document 1 holds the token id 8, .* 8 entries; 2 tokens"),
}


@pytest.mark.parametrize("case", FAULTS)
@pytest.mark.parametrize("chunk", [1 << 8, 1 << 22])
def test_faults_are_found(tmp_path, case, chunk, monkeypatch):
    monkeypatch.setattr("megalite.data.integrity.CHUNK", chunk)
    damage, vocab_size, message = FAULTS[case]
    found = list(faults(IndexedCorpus(damage(write(tmp_path / "x", TWO))), vocab_size))
    if message is None:
        assert found == []
    else:
        (fault,) = found
        assert re.search(message, fault), fault


def test_lengths_by_powers_of_two():
    lengths = np.array([0, 1, 2, 3, 4, 7, 8, 2**31 - 1], np.int32)
    assert length_table(lengths) == [
        (0, 0, 1, 0),
        (1, 1, 1, 1),
        (2, 3, 2, 5),
        (4, 7, 2, 11),
        (8, 15, 1, 8),
        (2**30, 2**31 - 1, 1, 2**31 - 1),
    ]
    assert length_table(np.empty(0, np.int32)) == []


def test_what_inspecting_says(tmp_path, capsys):
    prefix = write(tmp_path / "x", [[list(b"Hello there")], [], [list(b"abc")]])
    words = [prefix, "--tokenizer-type", "ByteLevelTokenizer", "--split", "1,1,0", "--tokens", "5"]
    assert inspect_dataset.main([*words, "--verify-integrity"]) == 0
    said = capsys.readouterr().out
    for line in (
        "3 documents, 1 of them empty; 2 sequences",
        "14 tokens of uint16, 28 B",
        "3 to 11, median 7, mean 7.0",
        "train              1 sequences from 0 on                11 tokens",
        "test               0 sequences from 2 on                 0 tokens",
        "document 0: 11 tokens: 72 101 108 108 111",
        "'Hello'",
        "document 2 (sequence 1): 3 tokens: 97 98 99",
        "Every entry is as a writer would make it.",
    ):
        assert line in said
    assert inspect_dataset.main([longer(prefix), "--verify-integrity"]) == 1
    assert "damaged: the .bin has 4 bytes after" in capsys.readouterr().out
    assert inspect_dataset.main([str(tmp_path / "none")]) == 1
    assert "there is no file" in capsys.readouterr().err


@pytest.fixture
def run(tmp_path):
    prefix = write(tmp_path / "x", [[list(range(100))]] * 20)
    return (
        "--num-layers 1 --hidden-size 16 --num-attention-heads 1 --seq-length 32 --max-position-embeddings 32 "
        "--micro-batch-size 1 --train-iters 10 --lr 1e-3 --tokenizer-type ByteLevelTokenizer --eval-iters 0 "
        f"--split 1 --data-path {prefix}"
    ).split()


def test_what_a_run_would_take_is_said_and_nothing_written(tmp_path, run, capsys):
    assert inspect_dataset.main(["--ranks", "4", "--run", *run]) == 0
    said = capsys.readouterr().out
    assert "train: 40 samples of 32 tokens, 1280 in all, from 1 epoch of 2000 tokens" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def test_a_prepared_cache_is_used(tmp_path, run, capsys, monkeypatch):
    words = [*run, "--data-cache-path", str(tmp_path / "cache")]
    assert prepare_cache.main(["--ranks", "2", *words]) == 0
    assert "train: 20 samples of 32 tokens" in capsys.readouterr().out
    assert len(list((tmp_path / "cache").iterdir())) == 4
    monkeypatch.setattr("megalite.data.gpt_dataset.build_index", None)
    assert prepare_cache.main(["--ranks", "2", *words]) == 0
    assert inspect_dataset.main(["--run", "--lr"]) == 1
    assert "--lr" in capsys.readouterr().err
    assert inspect_dataset.main(["--run", "--load", str(tmp_path / "none"), "--use-checkpoint-args"]) == 1
    assert "--use-checkpoint-args finds no model." in capsys.readouterr().err, "as a run would look for it"
