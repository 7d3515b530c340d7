"""Every kind of input under every tokenizer gives the same bytes for any number of workers; what is bad is named."""

import gzip
import io
import json
import sys
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from megalite.data.indexed import IndexedCorpus
from megalite.data.preprocess import long, reader
from megalite.data.preprocess.corpus import preprocess
from megalite.data.preprocess.encode import Encoding
from megalite.data.preprocess.long import Cutter
from megalite.data.preprocess.train import EXACT, train_tokenizer
from megalite.data.preprocess.workers import find_workers
from megalite.data.tokenizer import build_tokenizer

TEXTS = [
    "It was the best of times, it was the worst of times.\n\tAnd so on.",
    "",
    "caf\u00e9 \u6f22\u5b57\u3002\u6f22\u5b57 \U0001f468\u200d\U0001f469",
    "   ",
    'a line with\u2028separators\u0085and \\ "quotes" \ud83d\ude00'.encode("utf-16", "surrogatepass").decode("utf-16"),
    "many short words in a text that is long enough to be cut into pieces " * 40,
    "\u6f22\u5b57\u6f22" * 700,
    "last",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same texts as jsonl, gzip, zstandard, parquet and plain files; and small models of every kind."""
    tokenizers, zstandard, pyarrow = map(pytest.importorskip, ("tokenizers", "zstandard", "pyarrow"))
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("inputs")
    lines = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)).encode()
    (folder / "a.jsonl").write_bytes(lines)
    # Two members, as tools write that append; a line runs from one into the other.
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines[:99]) + gzip.compress(lines[99:]))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(lines[:99]) + zstandard.compress(lines[99:]))
    parquet.write_table(pyarrow.table({"id": range(len(TEXTS)), "text": TEXTS}), folder / "d.parquet", row_group_size=3)
    for n, text in enumerate(TEXTS):
        (folder / f"e{n}.txt").write_bytes(text.encode())
    for name, size, options in (("m1", 60, {"minloglevel": 2}), ("m2", 300, EXACT)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 3),
            model_writer=model,
            **{**options, "model_type": "bpe", "vocab_size": size, "hard_vocab_limit": False},
        )
        (folder / f"{name}.model").write_bytes(model.getvalue())
    train_tokenizer([str(folder / "a.jsonl")], str(folder / "hf"), vocab_size=320, model_type="byte-level-bpe")
    bpe = tokenizers.Tokenizer.from_file(str(folder / "hf/tokenizer.json"))
    bpe.model.save(str(folder))
    (folder / "vocab.json").write_text(json.dumps(bpe.get_vocab()))
    tokens = [*(bytes([byte]) for byte in range(256)), b"it", b" it", b"wa", b" was", "\u6f22".encode()]
    entries = [{"rank": rank, "token_bytes": b64encode(token).decode()} for rank, token in enumerate(tokens)]
    (folder / "tik.json").write_text(json.dumps(entries))
    bpe.normalizer = tokenizers.normalizers.NFC()
    bpe.save(str(folder / "nfc.json"))
    return folder


TOKENIZERS = {
    "bytes": ("ByteLevelTokenizer", {}),
    "gpt2": ("GPT2BPETokenizer", {"vocab_file": "vocab.json", "merge_file": "merges.txt"}),
    "hf": ("HuggingFaceTokenizer", {"tokenizer_model": "hf"}),
    "hf, own engine": ("HuggingFaceTokenizer", {"tokenizer_model": "nfc.json"}),
    "sentencepiece, lossy": ("SentencePieceTokenizer", {"tokenizer_model": "m1.model"}),
    "sentencepiece, exact": ("Llama2Tokenizer", {"tokenizer_model": "m2.model"}),
    "tiktoken": ("TikTokenizer", {"tokenizer_model": "tik.json"}),
}


def encoding(folder, name="bytes", **options):
    kind, files = TOKENIZERS[name]
    given = {"tokenizer_type": kind, **{flag: folder / file for flag, file in files.items()}}
    if kind == "TikTokenizer":
        given |= {"tiktoken_pattern": "v2", "tiktoken_num_special_tokens": 7}
    return Encoding(tokenizer=tuple(given.items()), **options)


def run(inputs, prefix, chosen, **options):
    said = []
    preprocess(
        inputs=[str(one) for one in inputs], output_prefix=str(prefix), encoding=chosen, say=said.append, **options
    )
    return "\n".join(said)


def documents(prefix, ending="text_document"):
    corpus = IndexedCorpus(f"{prefix}_{ending}")
    return [
        [corpus[i].tolist() for i in range(*two)] for two in zip(corpus.documents, corpus.documents[1:], strict=False)
    ]


def pair(prefix, ending="text_document"):
    return [Path(f"{prefix}_{ending}{end}").read_bytes() for end in (".bin", ".idx")]


@pytest.fixture
def small(monkeypatch):
    """Batches of a few lines, and documents that are too long to be held."""
    monkeypatch.setattr(reader, "BATCH_BYTES", 200)
    monkeypatch.setattr(reader, "LONG", 2000)
    monkeypatch.setattr(long, "PIECE", 300)
    monkeypatch.setattr(long, "WINDOW", 40)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_same_bytes_for_all_workers_inputs_and_sizes(tmp_path, folder, small, name):
    inputs = [
        folder / "a.jsonl",
        folder / "b.jsonl.gz",
        folder / "c.jsonl.zst",
        folder / "d.parquet",
        folder / "e*.txt",
    ]
    chosen = encoding(folder, name, append_eod=True)
    tokenizer = build_tokenizer(**dict(chosen.tokenizer))
    expected = [[[*ids, tokenizer.eod]] for ids in map(tokenizer.encode, TEXTS) if ids]
    for workers in (1, 2, 4):
        said = run(inputs, tmp_path / str(workers), chosen, workers=workers)
        assert f"{5 * len(expected)} documents" in said.replace(",", "")
        assert ("engine: tiktoken" in said) == (name in ("gpt2", "hf")), said
    assert documents(tmp_path / "1") == 5 * expected
    assert pair(tmp_path / "1") == pair(tmp_path / "2") == pair(tmp_path / "4")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_give_the_ids_of_the_whole(folder, monkeypatch, name):
    monkeypatch.setattr(long, "PIECE", 2000)
    tokenizer = build_tokenizer(**dict(encoding(folder, name).tokenizer))
    source = Path(json.__file__).with_name("decoder.py").read_text()
    for text, least in ((source, 4), (TEXTS[5] * 9, 6), (TEXTS[2] * 999, 1), ("ab" * 9000, 1), (" \n" * 9000, 1)):
        portions = [text[at : at + 700] for at in range(0, len(text), 700)]
        pieces = list(Cutter(tokenizer.encode_batch).pieces(portions))
        assert len(pieces) >= least
        assert np.concatenate(tokenizer.encode_batch(pieces)).tolist() == tokenizer.encode(text)


def test_standard_input_and_lines_of_text(tmp_path, folder, small, monkeypatch):
    chosen = encoding(folder)
    run([folder / "a.jsonl"], tmp_path / "file", chosen)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / "a.jsonl").read_bytes())))
    run(["-"], tmp_path / "stdin", chosen)
    assert pair(tmp_path / "file") == pair(tmp_path / "stdin")
    texts = ["one", "two\u2028two", "word " * 1000, "", "last"]
    (tmp_path / "lines").write_bytes("\r\n".join(texts).encode())
    run([tmp_path / "lines"], tmp_path / "lines", chosen, input_format="text-lines")
    assert documents(tmp_path / "lines") == [[list(text.encode())] for text in texts if text]


def test_a_list_is_a_document_of_several_sequences(tmp_path, folder):
    (tmp_path / "x.jsonl").write_text('{"text": ["ab", "", "c"]}\n{"text": []}\n{"text": "d"}\n{"text": ["", ""]}\n')
    said = run([tmp_path / "x.jsonl"], tmp_path / "x", encoding(folder, append_eod=True))
    assert documents(tmp_path / "x") == [[[97, 98], [99, 256]], [[100, 256]]]
    assert "2 documents, 6 tokens; 2 empty documents" in said


def test_sentences(tmp_path, folder, small):
    text = "Dr. Who came.  He left! \u201cWhy?\u201d Nobody knew the U.S. answer\n\nA new\nparagraph\n"
    sentences = ["Dr. Who came.", "He left!", "\u201cWhy?\u201d", "Nobody knew the U.S. answer", "A new\nparagraph"]
    (tmp_path / "x.jsonl").write_text(
        json.dumps({"text": text}) + "\n" + json.dumps({"text": (text + "\n") * 60}) + "\n"
    )
    run([tmp_path / "x.jsonl"], tmp_path / "x", encoding(folder, append_eod=True, split_sentences=True))
    one = [list(sentence.encode()) for sentence in sentences]
    many = one * 60
    assert documents(tmp_path / "x", "text_sentence") == [[*one[:-1], [*one[-1], 256]], [*many[:-1], [*many[-1], 256]]]
    run([tmp_path / "x.jsonl"], tmp_path / "y", encoding(folder, split_sentences=True, keep_newlines=True))
    assert documents(tmp_path / "y", "text_sentence")[0][3:] == [
        list(b"Nobody knew the U.S. answer\n\n"),
        list(b"A new\nparagraph\n"),
    ]


LONG_TEXT = "words enough for a text too long to be held " * 60
BAD = {
    b'{"text": "cut': "line 2 is not JSON",
    b'{"text": "\xff"}': "line 2 is not JSON in UTF-8",
    b"[1, 2]": "line 2 is not a JSON object",
    b'{"txt": "a"}': "line 2 has no key 'text'",
    b'{"text": null}': "line 2: the value of 'text' is NoneType",
    b'{"text": [1]}': "line 2: the value of 'text' is a list of other things",
    b'{"text": "a\\ud800b"}': "line 2 cannot be encoded: U+D800 alone is not a character",
    b'{"text": "%s", "x": [1, {"text": 2}], 5}' % LONG_TEXT.encode(): "line 2 is not JSON: a key is due",
    b'{"text": "%s' % LONG_TEXT.encode(): "line 2 is not JSON: a string does not end",
    b'{"text": "%s\\q%s"}' % (LONG_TEXT.encode(), LONG_TEXT.encode()): "line 2 is not JSON: Invalid",
    b'{"txt": "%s"}' % LONG_TEXT.encode(): "line 2 has no key 'text'",
    b'{"text": "%s"} {}' % LONG_TEXT.encode(): "line 2 is not JSON: something follows",
    b'{"text": "%s\xff"}' % LONG_TEXT.encode(): "line 2 is not UTF-8",
    b'{"text": "%s\\udc00"}' % LONG_TEXT.encode(): "line 2 cannot be encoded: U+DC00 alone",
}


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_what_becomes_of_a_bad_line(tmp_path, folder, small, line):
    source = tmp_path / "x.jsonl"
    source.write_bytes(b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n')
    with pytest.raises(ValueError) as failure:
        run([source], tmp_path / "x", encoding(folder, append_eod=True))
    assert str(failure.value).startswith(f"{source}, {BAD[line]}")
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]

    report = tmp_path / "report.jsonl"
    said = run([source], tmp_path / "x", encoding(folder, append_eod=True, on_error="skip"), report=str(report))
    assert documents(tmp_path / "x") == [[[97, 256]], [[98, 256]]]
    assert f"left out: {source}, {BAD[line]}" in said and "1 bad records were left out" in said
    (told,) = map(json.loads, report.read_text().splitlines())
    assert (told["file"], told["line"], told["action"]) == (str(source), 2, "left out") and told["why"]

    replaceable = b"\xff" in line or b"\\ud" in line
    said = run([source], tmp_path / "x", encoding(folder, append_eod=True, on_error="replace"))
    found = documents(tmp_path / "x")
    assert len(found) == 2 + replaceable and found[-1] == [[98, 256]]
    assert ("\ufffd" in bytes(found[1][0][:-1]).decode()) == replaceable
    assert f"{1 - replaceable} bad records were left out, {int(replaceable)} had characters replaced" in said


def test_an_id_out_of_range_is_an_error_that_names_the_line(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "1 2", "more": "3"}\n{"text": "4", "more": "100"}\n')
    chosen = Encoding(
        tokenizer=(("tokenizer_type", "NullTokenizer"), ("vocab_size", 100)), keys=("text", "more"), on_error="skip"
    )
    said = run([tmp_path / "x.jsonl"], tmp_path / "x", chosen)
    assert "x.jsonl, line 2 cannot be encoded: the id 100 is not one of 0 to 99" in said
    assert documents(tmp_path / "x") == [[[1, 2]]] and documents(tmp_path / "x", "more_document") == [[[3]]]


@pytest.mark.parametrize("name", ["b.jsonl.gz", "c.jsonl.zst", "d.parquet"])
@pytest.mark.parametrize("what", ["cut", "other"])
def test_a_damaged_file_is_named_and_the_next_one_read(tmp_path, folder, name, what):
    damaged = tmp_path / f"x{Path(name).suffix}"
    data = (folder / name).read_bytes()
    damaged.write_bytes(data[: len(data) // 2] if what == "cut" else b"other data" * 9)
    with pytest.raises(ValueError, match=str(damaged)):
        run([damaged, folder / "a.jsonl"], tmp_path / "x", encoding(folder))
    said = run([damaged, folder / "a.jsonl"], tmp_path / "x", encoding(folder, on_error="skip"))
    assert f"left out: {damaged}" in said
    run([folder / "a.jsonl"], tmp_path / "y", encoding(folder))
    assert documents(tmp_path / "x")[-7:] == documents(tmp_path / "y")[-7:]


@pytest.mark.parametrize(
    ("inputs", "keys", "message"),
    [
        (["no/such*.jsonl"], ("text",), r"--input no/such\*.jsonl: there is no such file"),
        (["."], ("text",), r"is a folder; name its files"),
        (["-", "-"], ("text",), "twice"),
        (["{}/e0.txt"], ("text", "title"), "is plain text, which has none"),
        (["{}/d.parquet"], ("title",), "there is no column 'title'; the columns are id, text"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, folder, inputs, keys, message):
    with pytest.raises(ValueError, match=message):
        run([one.format(folder) for one in inputs], tmp_path / "x", encoding(folder, keys=keys))


@pytest.mark.parametrize("name", ["hf", "gpt2", "sentencepiece, exact", "tiktoken"])
def test_special_tokens_only_when_allowed(tmp_path, folder, name):
    spelled = "</s>" if name in ("sentencepiece, exact", "tiktoken") else "<|endoftext|>"
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": f"before{spelled}after{spelled}"}))
    tokenizer = build_tokenizer(**dict(encoding(folder, name).tokenizer))
    run([tmp_path / "x.jsonl"], tmp_path / "x", encoding(folder, name))
    assert tokenizer.eod not in documents(tmp_path / "x")[0][0]
    said = run([tmp_path / "x.jsonl"], tmp_path / "y", encoding(folder, name, allow_special=True))
    expected = [*tokenizer.encode("before"), tokenizer.eod, *tokenizer.encode("after"), tokenizer.eod]
    assert documents(tmp_path / "y") == [[expected]] and "2 special tokens came out of the text itself" in said
    with pytest.raises(ValueError, match="ByteLevelTokenizer has no special tokens"):
        run([tmp_path / "x.jsonl"], tmp_path / "z", encoding(folder, allow_special=True))


@pytest.mark.parametrize("words", [65535, 65536, 65537, 70000])
def test_ids_beyond_16_bits(tmp_path, words):
    tokenizers = pytest.importorskip("tokenizers")
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    plain.save(str(tmp_path / "tokenizer.json"))
    ids = [*range(words - 20, words), *range(5)]
    lines = [" ".join(f"w{i}" for i in ids), "w1 w2"]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    chosen = Encoding(tokenizer=(("tokenizer_type", "HuggingFaceTokenizer"), ("tokenizer_model", tmp_path)))
    run([tmp_path / "x.jsonl"], tmp_path / "x", chosen)
    assert documents(tmp_path / "x") == [[ids], [[1, 2]]]
    assert IndexedCorpus(f"{tmp_path}/x_text_document").dtype == np.int32


def test_numbers_of_workers_are_tried_and_nothing_is_written(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(reader, "BATCH_BYTES", 2000)
    lines = (folder / "a.jsonl").read_text() * 40
    (tmp_path / "x.jsonl").write_text(lines)
    said: list[str] = []
    found = {"encoding": encoding(folder), "candidates": [1, 2], "say": said.append}
    best = find_workers(inputs=[str(tmp_path / "x.jsonl")], max_documents=10**6, **found)
    assert [line.split()[0] for line in said[:2]] == ["1", "2"] and said[2] == f"the fastest: --workers {best}"
    rates = [float(line.split()[2]) for line in said[:2]]
    assert best == 1 + rates.index(max(rates)) and [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]
    with pytest.raises(ValueError, match="too small to compare 1 workers on"):
        find_workers(inputs=[str(folder / "a.jsonl")], max_documents=1, **found)
    with pytest.raises(ValueError, match="give files, not - "):
        find_workers(inputs=["-"], max_documents=1, **found)
    (tmp_path / "x.jsonl").write_text(lines + '{"text": 3}')
    with pytest.raises(ValueError, match=r"line 321: the value of 'text' is int"):
        find_workers(inputs=[str(tmp_path / "x.jsonl")], max_documents=10**6, **found)
