"""The sample order is Megatron's; small data repeat or say why not; the cache is never trusted blindly."""

import errno
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from megalite.data.gpt_dataset import GPTDataset, build_index, plan_samples, split_ranges
from megalite.data.indexed import IndexedCorpus
from megalite.data.indexed_writer import IndexedWriter
from megalite.data.mock import MockCorpus
from megalite.data.sample_index import cut_samples

VALUES = json.loads((Path(__file__).parents[1] / "data/megatron_values.json").read_text())
EXPECTED = VALUES["single_1epoch"]["datasets"][0]


def corpus(prefix: Path, documents: list[list[int]]) -> IndexedCorpus:
    with IndexedWriter(prefix, np.dtype("uint16")) as writer:
        for document in documents:
            writer.add_document(document)
    return IndexedCorpus(prefix)


def dataset(source, num_samples, *, seq_length=8, seed=1234, cache=None, vocab_size=None, sequences=None):
    return GPTDataset(
        source,
        sequences=range(len(source.lengths)) if sequences is None else sequences,
        num_samples=num_samples,
        seq_length=seq_length,
        seed=seed,
        split="train",
        cache=cache,
        vocab_size=vocab_size,
    )


@pytest.fixture
def corpus_a(tmp_path):
    return corpus(tmp_path / "A", VALUES["corpora"]["A"]["docs"])


@pytest.fixture
def corpus_c(tmp_path):
    return corpus(tmp_path / "C", VALUES["corpora"]["C"]["docs"])


def check(data: GPTDataset, expected: dict) -> None:
    assert len(data) == expected["n"]
    for name, dtype in zip(("document_index", "sample_index", "shuffle_index"), expected["dtypes"], strict=True):
        assert getattr(data, name).tolist() == expected[name] and getattr(data, name).dtype == dtype
    for item, sample in zip(expected["first"], data, strict=False):
        assert sample[:-1].tolist() == item["tokens"] and sample[1:].tolist() == item["labels"]
        assert sample.dtype == np.int64


def test_one_epoch_as_megatron(corpus_a):
    check(dataset(corpus_a, None), EXPECTED)


def test_several_epochs_as_megatron(corpus_c):
    check(dataset(corpus_c, 36), VALUES["blend_weights_30_70"]["datasets"][0]["mid"][1])


@pytest.mark.parametrize(
    ("num_samples", "epochs", "first"),
    [(9, 1, 9), (10, 2, 9), (16, 2, 19), (29, 3, 29), (30, 4, 29), (35, 4, 29), (36, 4, 39)],
)
def test_when_a_last_epoch_stands_apart(num_samples, epochs, first):
    """80 tokens, 9 samples of 8 an epoch: apart when fewer than int(0.8 x 9) of the last one are needed."""
    plan = plan_samples(80, num_samples, 8)
    assert (plan.epochs, plan.samples, plan.first_samples) == (epochs, (epochs * 80 - 1) // 8, first)


def test_a_last_epoch_apart_is_shuffled_apart(corpus_c):
    data = dataset(corpus_c, 31)
    random, documents, first = np.random.RandomState(1234), len(corpus_c), (3 * 79 - 1) // 8
    expected = [np.tile(np.arange(documents), 3), np.arange(documents), np.arange(first), np.arange(first, len(data))]
    for part in expected:
        random.shuffle(part)
    assert data.document_index.tolist() == [*expected[0], *expected[1]]
    assert data.shuffle_index.tolist() == [*expected[2], *expected[3]] and len(data) == 39


def walked(lengths: list[int], seq_length: int, samples: int) -> list[list[int]]:
    """The cuts, found by walking token by token."""
    row = [(place, offset) for place, length in enumerate(lengths) for offset in range(length)]
    return [list(row[cut * seq_length]) for cut in range(samples + 1)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block", [1, 3, 1 << 15])
@pytest.mark.parametrize("dense", [0, 1 / 8, 1e9])
def test_the_cuts_equal_a_walk_token_by_token(tmp_path, seed, block, dense, monkeypatch):
    """Whether the documents are many blocks or one, and whether ends are counted or searched."""
    monkeypatch.setattr("megalite.data.sample_index.BLOCK", block)
    monkeypatch.setattr("megalite.data.sample_index.DENSE", dense)
    random = np.random.default_rng(seed)
    documents = [[int(x)] * int(x) for x in random.integers(0, 12, size=random.integers(1, 8))] + [[3] * 3]
    seq_length = int(random.integers(1, 20))
    source = corpus(tmp_path / "x", documents)
    data = dataset(source, int(random.integers(1, 60)), seq_length=seq_length, seed=seed)
    row = source.lengths[data.document_index].tolist()
    assert data.sample_index.tolist() == walked(row, seq_length, len(data))
    text = np.concatenate([source[i] for i in data.document_index])
    for place, sample in zip(data.shuffle_index.tolist(), data, strict=True):
        assert sample.tolist() == text[place * seq_length : (place + 1) * seq_length + 1].tolist()
    assert sorted(data.shuffle_index.tolist()) == list(range(len(data)))


def test_documents_longer_than_16_bits_say():
    lengths, index = np.array([70000, 3, 65536], np.int32), np.empty((14, 2), np.int32)
    cut_samples(lengths, np.array([2, 0, 1], np.int32), seq_length=10000, index=index)
    assert index[[6, 7, 13]].tolist() == [[0, 60000], [1, 70000 - 65536], [1, 130000 - 65536]]


@pytest.mark.parametrize("documents", [[10], [64], [65], [129], [1, 1, 1], [1]])
def test_small_data_repeat_as_often_as_needed(tmp_path, documents):
    data = dataset(corpus(tmp_path / "x", [[5] * n for n in documents]), 20, seq_length=64)
    assert len(data) >= 20
    assert all((data[i] == 5).all() and len(data[i]) == 65 for i in range(20))
    assert len(data.document_index) == -(-(20 * 64 + 1) // sum(documents)) * len(documents)


@pytest.mark.parametrize(("documents", "num_samples"), [([], 20), ([], None), ([10], None)])
def test_too_few_tokens(tmp_path, documents, num_samples):
    source = corpus(tmp_path / "x", [[5] * n for n in documents])
    with pytest.raises(ValueError, match=rf"has {sum(documents)} tokens .* takes --seq-length \+ 1 = 65"):
        dataset(source, num_samples, seq_length=64)


@pytest.mark.parametrize("samples", [1, 2, 15, 16, 17, 100, 10**9, 10**12])
@pytest.mark.parametrize("tokens", [1, 7, 129, 10**6 + 1])
def test_the_least_number_of_epochs(tokens, samples):
    plan = plan_samples(tokens, samples, 16)
    assert plan.samples >= samples and 0 <= plan.first_samples <= plan.samples
    assert plan.epochs == 1 or (plan.epochs - 1) * tokens < samples * 16 + 1


def test_ids_beyond_the_vocabulary(corpus_a):
    assert dataset(corpus_a, 5, vocab_size=100)
    with pytest.raises(
        ValueError, match=r"A: document 0 holds the token id 99 at token 6, but the vocabulary has 99 entries"
    ):
        dataset(corpus_a, 5, vocab_size=99)


@pytest.mark.parametrize("seq_length", [8, 6000])
@pytest.mark.parametrize(("dtype", "wrong"), [("uint16", 9), ("int32", 9), ("int32", -1), ("int32", 2**31 - 1)])
def test_an_id_that_the_probes_missed_is_found_when_read(tmp_path, dtype, wrong, seq_length):
    """In a sentence of the second document: its number is not that of the sequence."""
    with IndexedWriter(tmp_path / "x", np.dtype(dtype)) as writer:
        for document in ([1] * 3, [2] * 3, [1] * 5000 + [wrong] + [1] * 2000):
            writer.add_document(document)
    idx = tmp_path / "x.idx"
    documents = np.array([0, 1, 3], "<i8").tobytes()
    idx.write_bytes(header(idx.read_bytes()[:-32], 26, (3).to_bytes(8, "little")) + documents)
    data = dataset(IndexedCorpus(tmp_path / "x"), None, seq_length=seq_length, vocab_size=5)
    with pytest.raises(
        ValueError, match=rf"x: document 1 \(sequence 2\) holds the token id {wrong} at token 5000, but .* 5 entries"
    ):
        for index in range(len(data)):
            data.check(index)


def header(idx: bytes, offset: int, new: bytes) -> bytes:
    return idx[:offset] + new + idx[offset + len(new) :]


def files(folder: Path) -> list[str]:
    return sorted(path.name.split("train-")[1] for path in folder.iterdir())


def test_the_cache_gives_the_same_and_is_used(corpus_a, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    check(dataset(corpus_a, None, cache=cache), EXPECTED)
    assert files(cache) == ["description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"]
    monkeypatch.setattr("megalite.data.gpt_dataset.build_index", None)
    check(dataset(corpus_a, None, cache=cache), EXPECTED)


def test_many_builders_of_one_entry(corpus_a, tmp_path):
    for attempt in range(5):
        cache = tmp_path / f"cache{attempt}"
        with ThreadPoolExecutor(8) as threads:
            built = list(threads.map(lambda _, cache=cache: dataset(corpus_a, None, cache=cache), range(8)))
        for data in built:
            check(data, EXPECTED)
            assert data.remark == ""
        assert files(cache) == ["description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"]


def test_one_builds_and_the_others_wait(corpus_a, tmp_path, monkeypatch):
    """And what a killed one left is cleared away."""
    cache, built = tmp_path / "cache", []
    dataset(corpus_a, None, cache=cache)
    (marker,) = cache.glob("*description.txt")
    (cache / f".{marker.name}.1.tmp").write_bytes(b"half")
    marker.unlink()
    monkeypatch.setattr(
        "megalite.data.gpt_dataset.build_index",
        lambda *a, **b: (built.append(time.sleep(0.1)), build_index(*a, **b))[1],
    )
    with ThreadPoolExecutor(4) as threads:
        for data in threads.map(lambda _: dataset(corpus_a, None, cache=cache), range(4)):
            check(data, EXPECTED)
    assert len(built) == 1
    assert files(cache) == ["description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"]


def test_a_file_system_without_locks(corpus_a, tmp_path, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("megalite.data.index_cache.fcntl.flock", refuse)
    with ThreadPoolExecutor(4) as threads:
        for data in threads.map(lambda _: dataset(corpus_a, None, cache=tmp_path / "cache"), range(4)):
            check(data, EXPECTED)
            assert data.remark == ""
    assert len(files(tmp_path / "cache")) == 4


DAMAGE = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 4),
    "empty": lambda path: os.truncate(path, 0),
    "gone": lambda path: path.unlink(),
    "another shape": lambda path: np.save(path, np.zeros(3, np.int32)),
    "not an array": lambda path: path.write_bytes(b"\xff" * 100),
}


@pytest.mark.parametrize("part", ["description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_rebuilt(corpus_a, tmp_path, damage, part):
    cache = tmp_path / "cache"
    dataset(corpus_a, None, cache=cache)
    (path,) = cache.glob(f"*{part}")
    if part == "description.txt" and damage == "another shape":
        path.write_text("{}")
    else:
        DAMAGE[damage](path)
    check(dataset(corpus_a, None, cache=cache), EXPECTED)
    assert len(files(cache)) == 4


def test_another_corpus_under_the_same_name_is_noticed(tmp_path):
    cache = tmp_path / "cache"
    dataset(corpus(tmp_path / "x", [[1] * 30, [2] * 30]), None, cache=cache)
    source = corpus(tmp_path / "x", [[3] * 30, [4] * 30])
    os.utime(f"{source.prefix}.idx", ns=(1, 1))
    assert set(np.concatenate(list(dataset(source, None, cache=cache))).tolist()) == {3, 4}
    assert len(files(cache)) == 8


def test_a_folder_that_cannot_be_written(corpus_a, tmp_path):
    (tmp_path / "file").write_text("in the way")
    data = dataset(corpus_a, None, cache=tmp_path / "file" / "cache")
    check(data, EXPECTED)
    assert "cannot be cached" in data.remark


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.949, 0.05, 0.001), [(0, 19), (19, 20), (20, 20)]),
        ((1.0, 0.0, 0.0), [(0, 20), (20, 20), (20, 20)]),
        ((1 / 3, 1 / 3, 1 / 3), [(0, 7), (7, 13), (13, 20)]),
        ((0.01, 0.0, 0.99), [(0, 0), (0, 0), (0, 20)]),
    ],
)
def test_the_parts_of_a_split(shares, expected):
    assert [(r.start, r.stop) for r in split_ranges(shares, 20)] == expected


@pytest.mark.parametrize("vocab_size", [2, 100, 50257])
def test_mock_documents(vocab_size):
    mock = MockCorpus(vocab_size=vocab_size, eod=vocab_size - 1)
    assert len(mock.lengths) == 100_000 and mock.lengths.min() == 1 and mock.lengths.max() == 4095
    length = int(mock.lengths[3])
    whole = mock.get(3)
    assert whole.tolist() == [i % vocab_size for i in range(1, length)] + [vocab_size - 1]
    assert (
        mock.get(3, 2, length - 2).tolist() == whole[2:].tolist() and mock.get(3, 1, 3).tolist() == whole[1:4].tolist()
    )
    data = dataset(mock, 4, sequences=range(1000), seq_length=16, vocab_size=vocab_size)
    assert all(len(data[i]) == 17 for i in range(4))
