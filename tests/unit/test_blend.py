"""--data-path and --split to data sets: Megatron's blend, and clear words where a part is empty or too small."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalite.config.split import split_shares
from megalite.data.blend import Request, parse_data_path
from megalite.data.blend_order import blend_order
from megalite.data.gpt_dataset import split_ranges
from megalite.data.indexed_writer import IndexedWriter
from megalite.data.splits import build_datasets, build_datasets_of_parts, build_mock_datasets
from megalite.data.usage import check_epochs

VALUES = json.loads((Path(__file__).parents[1] / "data/megatron_values.json").read_text())


def write(prefix: Path, documents: list[list[int]], dtype: str = "uint16") -> str:
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for document in documents:
            writer.add_document(document)
    return str(prefix)


@pytest.fixture
def prefixes(tmp_path):
    return {name: write(tmp_path / name, VALUES["corpora"][name]["docs"]) for name in VALUES["corpora"]}


def build(path, sizes, *, split="1", seq_length=8, seed=1234, **options):
    request = Request(seq_length=seq_length, seed=seed, **options)
    return build_datasets(path, split=split, sizes=sizes, request=request)


PATHS = [
    (["a"], ["a"], None),
    (["a", "b"], ["a", "b"], None),
    (["1", "a"], ["a"], [1.0]),
    (["3", "a", "7", "b"], ["a", "b"], [0.3, 0.7]),
    (["0.3", "a", "0.7", "b"], ["a", "b"], [0.3, 0.7]),
]


@pytest.mark.parametrize(("entries", "prefixes", "weights"), PATHS)
def test_prefixes_and_weights(entries, prefixes, weights):
    assert parse_data_path(entries) == (prefixes, weights)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "is empty"),
        (["0.3", "a", "0.7"], "a weight before each prefix"),
        (["a", "0.3", "b", "0.7"], "a weight before each prefix"),
        (["0.3", "a", "b", "c"], "a weight before each prefix"),
        (["0.3", "0.7"], "a weight before each prefix"),
        (["0", "a", "1", "b"], "must be above 0"),
        (["-1", "a", "2", "b"], "must be above 0"),
        (["nan", "a", "2", "b"], "must be above 0"),
    ],
)
def test_a_data_path_that_cannot_be_meant(entries, message):
    with pytest.raises(ValueError, match=f"--data-path .*{message}"):
        parse_data_path(entries)


WORDS = st.text(max_size=8) | st.sampled_from(
    ["0.3", "1e400", "-0", "nan", "inf", "1_0", "\u0663", "", " ", "a", "./1"]
)


@given(st.lists(WORDS, max_size=5))
@settings(max_examples=300)
def test_no_data_path_crashes(entries):
    """What is read uses up the words, and weighs all of it; the rest is an error that names the flag."""
    try:
        prefixes, weights = parse_data_path(entries)
    except ValueError as error:
        assert str(error).startswith("--data-path ")
    else:
        assert len(prefixes) * (1 if weights is None else 2) == len(entries) and len(prefixes) > 0
        assert weights is None or (min(weights) > 0 and sum(weights) == pytest.approx(1))


@given(st.lists(WORDS | st.floats().map(str), max_size=4).map(",".join) | st.text(max_size=12), st.integers(0, 10**7))
@settings(max_examples=300)
def test_no_split_crashes(text, documents):
    """Shares cut the documents into parts that are disjoint, in order, and all of them; or an error names the flag."""
    try:
        shares = split_shares(text)
    except ValueError as error:
        assert str(error).startswith("--split ")
    else:
        assert min(shares) >= 0 and sum(shares) == pytest.approx(1)
        parts = split_ranges(shares, documents)
        assert [part.start for part in parts] == [0, parts[0].stop, parts[1].stop]
        assert all(part.start <= part.stop for part in parts)
        assert parts[2].stop == documents


@pytest.mark.parametrize("cached", [False, True])
def test_a_weighted_blend_as_megatron(prefixes, tmp_path, cached):
    expected = VALUES["blend_weights_30_70"]["datasets"][0]
    for _ in range(1 + cached):
        options = {"cache": tmp_path / "cache"} if cached else {}
        data = build(["0.3", prefixes["A"], "0.7", prefixes["C"]], (50, 0, 0), **options).train
        assert len(data) == expected["n"]
        assert data.dataset_index.tolist() == expected["dataset_index"]
        assert data.dataset_sample_index.tolist() == expected["dataset_sample_index"]
        for dataset, mid in zip(data.datasets, expected["mid"], strict=True):
            assert dataset.shuffle_index.tolist() == mid["shuffle_index"]
        for tokens, sample in zip(expected["first"], data, strict=False):
            assert sample[:-1].tolist() == tokens


def test_one_prefix_needs_no_blend(prefixes):
    for path in ([prefixes["A"]], ["0.5", prefixes["A"]]):
        data = build(path, (None, 0, 0)).train
        assert data.shuffle_index.tolist() == VALUES["single_1epoch"]["datasets"][0]["shuffle_index"]


def test_without_weights_each_sample_comes_once(prefixes):
    data = build([prefixes["A"], prefixes["C"]], (None, 0, 0)).train
    pairs = list(zip(data.dataset_index.tolist(), data.dataset_sample_index.tolist(), strict=True))
    lengths = [len(dataset) for dataset in data.datasets]
    assert sorted(pairs) == [(d, i) for d, n in enumerate(lengths) for i in range(n)]
    first = build([prefixes["A"], prefixes["C"]], (10, 0, 0)).train
    assert len(first) == 10 and [s.tolist() for s in first] == [data[i].tolist() for i in range(10)]
    with pytest.raises(ValueError, match=r"1000 samples are needed, .* at most once\. Give weights"):
        build([prefixes["A"], prefixes["C"]], (1000, 0, 0))


def one_by_one(weights, size, limits=None) -> list[int]:
    """The definition: each place to the first of those furthest behind, among those that are not spent."""
    drawn, order = [0] * len(weights), []
    for place in range(size):
        behind = {
            index: weight * max(place, 1) - drawn[index]
            for index, weight in enumerate(weights)
            if limits is None or drawn[index] < limits[index]
        }
        order.append(max(behind, key=lambda index: (behind[index], -index)))
        drawn[order[-1]] += 1
    return order


ORDERS = {
    "one": ((1.0,), 300, None),
    "one of a thousand": ((0.001, 0.999), 20000, None),
    "one of a million": ((1 - 1e-6, 1e-6), 20000, None),
    "three": ((0.2, 0.3, 0.5), 2000, None),
    "equal": ((1 / 3, 1 / 3, 1 / 3), 2000, None),
    "many equal": ((0.01,) * 100, 3000, None),
    "rare of several kinds": ((1e-5, 3e-4, 0.2, 0.79969), 20000, None),
    "twenty rare": ((0.0005,) * 20 + (0.99,), 5000, None),
    "limits": ((0.1, 0.2, 0.7), 1000, (100, 200, 700)),
    "one sample": ((1 / 1002, 1 / 1002, 1000 / 1002), 1002, (1, 1, 1000)),
    "wrong shares": ((0.5, 0.5), 110, (10, 100)),
    "none": ((0.5, 0.5), 0, None),
}


@pytest.mark.parametrize("case", ORDERS)
@pytest.mark.parametrize("width", [1, 1 << 8, 1 << 16])
def test_the_order_is_as_if_made_one_by_one(case, width, monkeypatch):
    """Cut into many stretches or few."""
    weights, size, limits = ORDERS[case]
    monkeypatch.setattr("megalite.data.blend_order.WIDTH", width)
    order, samples = blend_order(weights, size, limits)
    assert order.tolist() == one_by_one(weights, size, limits)
    for index in range(len(weights)):
        assert samples[order == index].tolist() == list(range(np.count_nonzero(order == index)))


@given(st.lists(st.floats(1e-9, 1) | st.sampled_from([0.5, 1, 1e-6]), min_size=1, max_size=12), st.integers(0, 700))
@settings(max_examples=60)
def test_the_order_of_any_weights(weights, size):
    shares = [weight / sum(weights) for weight in weights]
    assert blend_order(shares, size)[0].tolist() == one_by_one(shares, size)


def test_an_extreme_blend_is_not_overdrawn(tmp_path):
    """Rounding 20 tiny shares up makes the blend longer than asked for: the common corpus gives more than its share."""
    rare = [write(tmp_path / f"rare{n}", [[1] * 9]) for n in range(20)]
    common = write(tmp_path / "common", [[2] * 817])
    path = [word for prefix in rare for word in ("0.0005", prefix)] + ["0.99", common]
    data = build(path, (100, 0, 0)).train
    assert len(data) == 119 and np.count_nonzero(data.dataset_index == 20) > 102
    assert len(list(data)) == 119


def test_two_widths_in_one_blend(tmp_path):
    narrow = write(tmp_path / "narrow", [[65000] * 50])
    wide = write(tmp_path / "wide", [[129279] * 50], "int32")
    data = build(["1", narrow, "1", wide], (20, 0, 0), vocab_size=129280).train
    assert {int(t) for sample in data for t in sample} == {65000, 129279}
    with pytest.raises(ValueError, match="wide: document 0 holds the token id 129279"):
        build(["1", narrow, "1", wide], (20, 0, 0), vocab_size=65001)
    data.datasets[1].vocab_size = 65001
    for index, corpus in enumerate(data.dataset_index):
        if corpus == 1:
            with pytest.raises(ValueError, match="wide: document 0 holds the token id 129279"):
                data.check(index)
        else:
            data.check(index)


def test_the_parts_are_disjoint_and_said(tmp_path):
    prefix = write(tmp_path / "x", [[n] * 10 for n in range(20)])
    data = build([prefix], (5, 5, 5), split="1,1,1", seq_length=4)
    seen = [{int(t) for sample in part for t in sample} for part in (data.train, data.valid, data.test)]
    assert seen == [set(range(7)), set(range(7, 13)), set(range(13, 20))]
    assert "20 documents, 200 tokens; documents train 0 to 6, valid 7 to 12, test 13 to 19" in data.notes[0]


@pytest.mark.parametrize("split", ["100,0,0", "949,1,50", "99,1,0"])
def test_nothing_to_evaluate_is_said(tmp_path, split):
    prefix = write(tmp_path / "x", [[n] * 10 for n in range(20)])
    data = build([prefix], (5, 2, 0), split=split, seq_length=4)
    assert len(data.train) >= 5 and data.valid is None and data.test is None
    assert any("nothing to evaluate" in note for note in data.notes)
    assert ("its share rounds to no document" in data.notes[0]) == (split != "100,0,0")


def test_nothing_to_train_on_fails(tmp_path):
    prefix = write(tmp_path / "x", [[n] * 10 for n in range(20)])
    with pytest.raises(ValueError, match=r"--split 1,0,99 leaves 0 tokens of .*x for train; 1 are needed"):
        build([prefix], (5, 0, 0), split="1,0,99")


def test_a_corpus_without_validation_documents_leaves_the_blend(tmp_path, prefixes):
    small = write(tmp_path / "small", [[5] * 100])
    data = build(["1", small, "1", prefixes["A"]], (20, 4, 0), split="90,10,0")
    assert [d.corpus.prefix for d in data.valid.datasets] == [prefixes["A"]]
    assert any("small for valid" in note and "left out" in note for note in data.notes)


def test_mock_data_come_in_three_equal_parts():
    data = build_mock_datasets(sizes=(8, 4, 2), request=Request(seq_length=16, seed=1), vocab_size=50, eod=49)
    assert "train 0 to 33332, valid 33333 to 66666, test 66667 to 99999" in data.notes[0]
    assert all(int(part[i].max()) < 50 for part in (data.train, data.valid, data.test) for i in range(2))


USES = {
    "a part of an epoch": ("a", 5, "train: 5 samples of 8 tokens, 40 in all, from 1 epoch of 90 tokens of a; 50 stay"),
    "all": ("a", None, "train: 11 samples of 8 tokens, 88 in all, from 1 epoch of 90 tokens of a; 2 stay unused"),
    "several": ("a", 30, "train: 30 samples of 8 tokens, 240 in all, from 3 epochs of 90 tokens of a; 2.67 are used"),
    "the label of the last": ("b", 5, "train: 5 samples of 8 tokens, 40 in all, from 2 epochs of 40 tokens of b; 1.00"),
    "a blend": ("3 a 1 b", 40, "train: 30 samples of 8 tokens, 240 in all, from 3 epochs of 90 tokens of a; 2.67 are"),
}


@pytest.mark.parametrize("case", USES)
def test_what_is_taken_of_each_corpus(tmp_path, case, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("a"), [[1] * 30] * 3)
    write(Path("b"), [[2] * 40])
    path, size, line = USES[case]
    usage = build(path.split(), (size, 0, 0)).usage
    assert str(usage[0]).startswith(line) and len(usage) == len(path.split()[1::2] or [path])
    assert sum(used.samples for used in usage) == (11 if size is None else size)


def test_the_surplus_of_a_blend_is_not_counted(prefixes):
    """Rounded up, the shares of 50 samples come to 51 places; the run takes 50."""
    usage = build(["1", prefixes["A"], "1", prefixes["C"], "1", prefixes["A"]], (50, 0, 0)).usage
    assert [used.samples for used in usage] == [17, 17, 16]


def test_more_epochs_than_allowed(tmp_path):
    prefix = write(tmp_path / "a", [[1] * 30] * 3)
    usage = build([prefix], (30, 0, 0)).usage
    check_epochs(usage, 2.7)
    with pytest.raises(ValueError, match=r"--max-epochs 2.5: .*a 2\.67 times: 30 samples .*\. 28 samples keep to it"):
        check_epochs(usage, 2.5)
    validated = build_datasets_of_parts(
        {"train": [prefix], "valid": [prefix]}, sizes=(20, 100, 0), request=Request(seq_length=8, seed=1)
    )
    check_epochs(validated.usage, 2)


def numbers(part) -> set[int]:
    return {int(token) for sample in part for token in sample}


def test_parts_with_blends_of_their_own(tmp_path):
    """Each part has all documents of its corpora, a weighted one is repeated, and a single prefix has any weight."""
    names = {n: write(tmp_path / f"c{n}", [[n] * 30] * 3) for n in range(1, 5)}
    paths = {"train": ["0.2", names[1], "0.8", names[2]], "valid": ["7", names[3]], "test": [names[4], names[4]]}
    data = build_datasets_of_parts(paths, sizes=(100, 10, None), request=Request(seq_length=8, seed=1))
    assert len(data.train) == 100 and len(data.valid) >= 10 and len(data.test) == 22
    assert [numbers(part) for part in (data.train, data.valid, data.test)] == [{1, 2}, {3}, {4}]
    assert sum(int(sample[0]) == 1 for sample in data.train) == 20
    assert f"train: {names[1]}: 3 documents, 90 tokens" in data.notes


def test_a_part_that_has_no_blend_is_said_and_one_not_wanted_is_not(tmp_path):
    prefix = write(tmp_path / "a", [[1] * 30])
    data = build_datasets_of_parts({"train": [prefix]}, sizes=(4, 2, 0), request=Request(seq_length=8, seed=1))
    assert data.validation == {} and data.test is None and data.held_out("test") == {}
    assert [note for note in data.notes if "nothing" in note] == ["valid: no data, so there is nothing to evaluate on."]


def test_a_part_with_too_little_fails_or_is_left_out(tmp_path):
    full, empty = write(tmp_path / "full", [[1] * 30]), write(tmp_path / "empty", [[]])
    with pytest.raises(ValueError, match=r"0 tokens of .*empty for train; 1 are needed\. Give it more data"):
        build_datasets_of_parts({"train": [empty]}, sizes=(4, 0, 0), request=Request(seq_length=8, seed=1))
    paths = {"train": [full], "valid": [empty, full]}
    data = build_datasets_of_parts(paths, sizes=(4, 2, 0), request=Request(seq_length=8, seed=1))
    assert any("0 tokens of" in note and "left out" in note for note in data.notes) and numbers(data.valid) == {1}


@pytest.mark.parametrize("split", [False, True])
def test_validation_corpora_apart(tmp_path, split):
    (tmp_path / "x").mkdir()
    names = {n: write(tmp_path / name, [[n] * 30] * 4) for n, name in enumerate(["a", "b", "x/b"])}
    paths, options = (
        list(names.values()),
        {"sizes": (4, 6, 0), "request": Request(seq_length=8, seed=1), "validate_apart": True},
    )
    if split:
        data = build_datasets(paths, split="50,50,0", **options)
    else:
        data = build_datasets_of_parts({"train": paths, "valid": paths}, **options)
    sets = data.held_out("validation")
    expected = ["validation-a", f"validation-{names[1]}", f"validation-{names[2]}"]
    assert {name: numbers(part) for name, part in sets.items()} == {name: {n} for n, name in enumerate(expected)}
    assert all(len(part) >= 6 for part in sets.values()) and data.valid is sets["validation-a"]
