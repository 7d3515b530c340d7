"""Any bytes at all: read as the plain way reads them, or a clear error; and documents in pieces are the whole."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from megalite.data.indexed import IndexedCorpus
from megalite.data.preprocess import long, reader
from megalite.data.preprocess.batch import BOM
from megalite.data.preprocess.corpus import preprocess
from megalite.data.preprocess.encode import Encoding
from megalite.data.preprocess.long import JsonTexts
from megalite.data.preprocess.records import read_record
from megalite.data.preprocess.sentences import sentence_ends

BYTES = (("tokenizer_type", "ByteLevelTokenizer"),)
FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.sampled_from(["text", "title", "a", "\u00e9\\"]), values, max_size=4)
records = st.one_of(
    st.builds(
        lambda value, plain: json.dumps(value, ensure_ascii=plain).encode("utf-8", "surrogatepass"),
        objects,
        st.booleans(),
    ),
    st.builds(lambda text: json.dumps({"text": text}).encode(), st.text(alphabet=st.characters(), max_size=80)),
    st.binary(max_size=40),
    st.sampled_from([b"", b"  ", b"\r", BOM, b'{"text": "\\ud83d\\ude00\\\\ud83d"}', b'{"text": "\\ud83d"}']),
)


def broken(data: bytes, place: int, junk: bytes) -> bytes:
    return data[: place % (len(data) + 1)] + junk + data[place % (len(data) + 1) :]


files = st.builds(
    lambda bom, lines, place, junk, end: broken(bom + b"\n".join(lines) + end, place, junk),
    st.sampled_from([b"", BOM]),
    st.lists(records, max_size=8),
    st.integers(0, 1000),
    st.binary(max_size=3),
    st.sampled_from([b"", b"\n", b"\r\n", b"\n\n"]),
)


def plainly(data: bytes, *, is_json: bool, errors: str) -> tuple[list[bytes], set[int]]:
    """The documents and the numbers of bad lines, by the shortest way there is."""
    found, bad = [], set()
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.removeprefix(BOM) if number == 1 else line
        if not line.strip():
            continue
        try:
            record = line.removesuffix(b"\r")
            texts, replaced = read_record(record, ["text"], is_json=is_json, may_replace=errors == "replace")
            found.append("".join(texts["text"]).encode())
            bad |= {number} if replaced else set()
        except ValueError:
            bad.add(number)
    return [document for document in found if document], bad


@FUZZ
@given(
    data=files,
    is_json=st.booleans(),
    errors=st.sampled_from(["skip", "replace"]),
    size=st.integers(1, 64),
    limit=st.sampled_from([10, 40, 10_000]),
)
@example(data=b'{"text": "\\\\ud83d\\ude00"}', is_json=True, errors="skip", size=7, limit=10)
def test_any_bytes_are_read_as_lines(tmp_path, monkeypatch, data, is_json, errors, size, limit):
    """Whatever the sizes of what is read at a time, and of what is held at most."""
    monkeypatch.setattr(reader, "BATCH_BYTES", size)
    monkeypatch.setattr(reader, "LONG", limit)
    monkeypatch.setattr(long, "PIECE", 8)
    monkeypatch.setattr(long, "WINDOW", 4)
    (tmp_path / "x").write_bytes(data)
    expected, bad_lines = plainly(data, is_json=is_json, errors=errors)
    for old in tmp_path.glob("out*"):
        old.unlink()
    found: list[bytes] = []
    try:
        preprocess(
            inputs=[str(tmp_path / "x")],
            input_format="jsonl" if is_json else "text-lines",
            output_prefix=str(tmp_path / "out"),
            encoding=Encoding(tokenizer=BYTES, on_error=errors),
            report=str(tmp_path / "report"),
            say=lambda line: None,
        )
        corpus = IndexedCorpus(tmp_path / "out_text_document")
        bounds = [int(corpus.lengths[:end].sum()) for end in corpus.documents]
        tokens = b"".join(corpus[i].astype(np.uint8).tobytes() for i in range(len(corpus)))
        found = [tokens[start:end] for start, end in pairwise(bounds)]
    except ValueError as error:
        assert "gives no tokens" in str(error)
    told = {json.loads(line)["line"] for line in (tmp_path / "report").read_text().splitlines()}
    # In a long line a list, and a key that comes twice, are refused; else nothing differs.
    extra = told - bad_lines
    assert not bad_lines - told, (bad_lines, told)
    if not extra:
        assert found == expected
    else:
        assert limit < 10_000 and is_json and len(found) >= len(expected) - len(extra)
        assert [document for document in expected if document in found] == found


@FUZZ
@given(
    value=st.builds(lambda rest, text: {**rest, "text": text}, objects, st.text(max_size=90)),
    plain=st.booleans(),
    cuts=st.lists(st.integers(1, 9), min_size=1),
)
def test_json_in_portions(value, plain, cuts):
    text = json.dumps(value, ensure_ascii=plain)
    portions, at = [], 0
    while at < len(text):
        size = cuts[len(portions) % len(cuts)]
        portions.append(text[at : at + size])
        at += size
    found = list(JsonTexts(iter(portions), ["text"]))
    assert {key for key, _ in found} <= {"text"} and "".join(part for _, part in found) == value["text"]
    with pytest.raises(ValueError):
        list(JsonTexts(iter([*portions[:-1], portions[-1][:-1]]), ["text"]))


@FUZZ
@given(st.text(max_size=300) | st.text(alphabet=" .!?\nAb\u3002", max_size=60))
def test_sentences_lose_nothing(text):
    ends = sentence_ends(text)
    assert ends == sorted(set(ends)) and ends[-1] == len(text)


def test_a_long_run_is_no_trap():
    for text in ("a" * 1_000_000, "." * 1_000_000, " " * 1_000_000, "a." * 500_000, "\n" * 1_000_000):
        assert sentence_ends(text)[-1] == len(text)
