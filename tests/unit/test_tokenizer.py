"""Text comes back, special tokens in it are text, and a checkpoint carries what rebuilds a tokenizer."""

import base64
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import sentencepiece

from megalite.data import tokenizer_engine
from megalite.data.preprocess.stdlib import build_stdlib_corpus
from megalite.data.preprocess.train import EXACT, train_tokenizer
from megalite.data.tokenizer import KINDS, build_tokenizer, rebuild_tokenizer
from megalite.data.tokenizer_base import ROUND_TRIPS
from megalite.data.tokenizer_engine import fastest, recipe, tiktoken_encode

TEXT = "def f(x):\n\treturn x  +  1\n\n\nclass Test:\n    pass  # before and after\n"
EXACT_TEXTS = [
    TEXT,
    *ROUND_TRIPS.values(),
    " leading",
    "\r\n\u2028\x85",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u6f22\u5b57",
    "before <|endoftext|> after </s> <s> <unk>",
    "<|endoftext|><|endoftext|>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """m1.model with the trainer's defaults, m2.model exact, hf/ and gpt2/ byte-level BPE whose end has id 0."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("tokenizers")
    for name, size, options in (("m1", 50, {"minloglevel": 2}), ("m2", 320, EXACT)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([TEXT] * 20),
            model_writer=model,
            vocab_size=size,
            model_type="bpe",
            **{**options, "hard_vocab_limit": False},
        )
        (folder / f"{name}.model").write_bytes(model.getvalue())
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([TEXT] * 20, trainer)
    (folder / "hf").mkdir()
    bpe.save(str(folder / "hf/tokenizer.json"))
    (folder / "hf/tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    (folder / "gpt2").mkdir()
    bpe.model.save(str(folder / "gpt2"))
    (folder / "gpt2/vocab.json").write_text(json.dumps(bpe.get_vocab()))
    tokens = [bytes([byte]) for byte in range(256)] + [b"re", b"tu", b"retu", b" re", b"pass", b"aB"]
    (folder / "tik.json").write_text(json.dumps(ranked(tokens)))
    return folder


def ranked(tokens):
    """TikTokenizer's entries."""
    return [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode(errors="replace")}
        for rank, token in enumerate(tokens)
    ]


def settings(kind, folder):
    paths = {"HuggingFaceTokenizer": "hf", "SentencePieceTokenizer": "m2.model", "Llama2Tokenizer": "m2.model"}
    paths["TikTokenizer"] = "tik.json"
    known = {
        "tokenizer_model": folder / paths.get(kind, "m2.model"),
        "vocab_file": folder / "gpt2/vocab.json",
        "merge_file": folder / "gpt2/merges.txt",
        "vocab_size": 100,
        "tiktoken_pattern": "v2",
    }
    return {"tokenizer_type": kind, **{name: known[name] for name in KINDS[kind][1]}}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "NullTokenizer"])
@pytest.mark.parametrize("text", EXACT_TEXTS)
def test_text_comes_back_and_is_only_text(folder, kind, text):
    tokenizer = build_tokenizer(**settings(kind, folder))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert [found.tolist() for found in tokenizer.encode_batch([text, text])] == [ids, ids]
    assert tokenizer.eod not in ids and all(0 <= i < tokenizer.vocab_size for i in ids)
    assert tokenizer.notes() == []


@pytest.mark.parametrize("kind", KINDS)
def test_it_can_be_rebuilt_from_what_a_checkpoint_carries(folder, tmp_path, kind):
    first = build_tokenizer(**settings(kind, folder))
    description = json.loads(json.dumps(first.describe()))
    for name, path in first.files().items():
        shutil.copy(path, tmp_path / name)
    second = rebuild_tokenizer(description, tmp_path)
    text = "5 17 99" if kind == "NullTokenizer" else TEXT
    assert (second.vocab_size, second.eod) == (first.vocab_size, first.eod)
    assert second.encode(text) == first.encode(text)


def test_a_lossy_model_says_so(folder):
    tokenizer = build_tokenizer(tokenizer_type="SentencePieceTokenizer", tokenizer_model=folder / "m1.model")
    notes = " ".join(tokenizer.notes())
    assert "runs of spaces, tabs and newlines" in notes and "no byte fallback" in notes
    assert tokenizer.unknown in tokenizer.encode("\u6f22")
    assert (tokenizer.eod, tokenizer.vocab_size) == (tokenizer.model.eos_id(), tokenizer.model.get_piece_size())
    assert tokenizer.model.pad_id() == -1 and -1 not in tokenizer.encode(TEXT)


def test_the_end_of_gpt2_and_hugging_face(folder):
    for kind in ("GPT2BPETokenizer", "HuggingFaceTokenizer"):
        tokenizer = build_tokenizer(**settings(kind, folder))
        assert tokenizer.eod == 0 and tokenizer.decode([0]) == "<|endoftext|>"


def test_ids_of_tiktoken_as_megatron_numbers_them(folder):
    """Special tokens first, then the file's entries, as many as --vocab-size leaves room for."""
    base = settings("TikTokenizer", folder)
    tokenizer = build_tokenizer(**base)
    assert (tokenizer.vocab_size, tokenizer.eod) == (1000 + 262, 2)
    assert tokenizer.encode("return") == [1000 + i for i in (258, ord("r"), ord("n"))]
    few = build_tokenizer(**base, tiktoken_num_special_tokens=8, vocab_size=8 + 257)
    assert few.encode("return") == [8 + i for i in (256, ord("t"), ord("u"), ord("r"), ord("n"))]
    assert few.special_tokens()["<SPECIAL_7>"] == 7 and few.decode([2, 8 + 256]) == "</s>re"
    # The second expression cuts before a capital.
    cut = [build_tokenizer(**{**base, "tiktoken_pattern": pattern}).encode("aB") for pattern in ("v1", "v2")]
    assert cut == [[1000 + 261], [1000 + ord("a"), 1000 + ord("B")]]
    nameless = build_tokenizer(**base, tiktoken_special_tokens=("<unk>",))
    with pytest.raises(ValueError, match="lacks </s>, which ends a document"):
        _ = nameless.eod


@pytest.mark.parametrize(("words", "added", "size"), [(65535, 0, 65535), (65530, 10, 65540)])
def test_the_vocabulary_reaches_to_the_highest_id(tmp_path, words, added, size):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0")
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    plain.add_tokens([f"added{i}" for i in range(added)])
    plain.save(str(tmp_path / "tokenizer.json"))
    tokenizer = build_tokenizer(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=tmp_path / "tokenizer.json")
    assert tokenizer.vocab_size == size and tokenizer.unknown == 0
    with pytest.raises(ValueError, match="does not say which token ends a document"):
        _ = tokenizer.eod


def changed(folder, tmp_path, change):
    """The Hugging Face tokenizer with something else in its file."""
    described = json.loads((folder / "hf/tokenizer.json").read_text())
    change(described)
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    return build_tokenizer(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=tmp_path / "tokenizer.json")


def test_the_fast_engine_gives_the_same_ids(folder):
    """On program text, and on characters beside a letter, a digit, a space and themselves."""
    sources = [path.read_text("utf-8") for path in sorted(Path(json.__file__).parent.glob("*.py"))]
    for kind in ("GPT2BPETokenizer", "HuggingFaceTokenizer"):
        tokenizer = build_tokenizer(**settings(kind, folder))
        found, why = fastest(tokenizer, sources)
        assert found == recipe(tokenizer) and "proven" in why
    own = tokenizer.encode_batch
    fast = tiktoken_encode(recipe(tokenizer), tokenizer)
    every = [chr(c) for c in (*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 64))]
    for start in range(0, len(every), 1 << 15):
        chunk = every[start : start + (1 << 15)]
        texts = ["".join(f"a{c}1 {c}" for c in chunk[at : at + 64]) for at in range(0, len(chunk), 64)]
        for text, ours, theirs in zip(texts, fast(texts), own(texts), strict=True):
            assert ours.tolist() == theirs.tolist(), text


def test_llamas_pattern_and_added_tokens_on_the_fast_engine(folder, tmp_path):
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

    def change(described):
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
        described["model"]["ignore_merges"] = True
        tool = len(described["model"]["vocab"])
        described["added_tokens"].append(
            {**described["added_tokens"][0], "id": tool, "content": "<tool>", "special": False}
        )

    tokenizer = changed(folder, tmp_path, change)
    texts = [*EXACT_TEXTS, "IT'S it's 12345 x\r\n\r\ny", "a <tool>call</tool>"]
    assert fastest(tokenizer, texts)[0] is not None
    found = tiktoken_encode(recipe(tokenizer), tokenizer)(texts)
    assert [ids.tolist() for ids in found] == list(map(tokenizer.encode, texts))
    assert tokenizer.vocab_size - 1 in found[-1]


def swap_merges(described):
    merges = described["model"]["merges"]
    merges[0], merges[-1] = merges[-1], merges[0]


def add_a_merge_never_reached(described):
    """The parts of "xyz" are made, but y and z would join first."""
    model = described["model"]
    model["merges"] += [["y", "z"], ["x", "y"], ["xy", "z"]]
    for token in ("yz", "xy", "xyz"):
        model["vocab"][token] = len(model["vocab"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda described: described.update(normalizer={"type": "NFC"}), "not BPE of the text as it is"),
        (lambda described: described["pre_tokenizer"].update(add_prefix_space=True), "not cut into words by one"),
        (lambda described: described["model"].update(dropout=0.1), "options beyond merges"),
        (swap_merges, "is out of order"),
        (add_a_merge_never_reached, "'xyz' does not come out as itself"),
    ],
)
def test_no_fast_engine_without_a_proof(folder, tmp_path, change, reason):
    found, why = fastest(changed(folder, tmp_path, change), [])
    assert found is None and re.search(reason, why), why


def test_ids_in_another_order_than_merges(folder, tmp_path):
    def change(described):
        last = len(described["model"]["vocab"]) - 1
        described["model"]["vocab"] = {token: last - i for token, i in described["model"]["vocab"].items()}
        described["added_tokens"][0]["id"] = last

    tokenizer = changed(folder, tmp_path, change)
    assert fastest(tokenizer, EXACT_TEXTS)[0] is not None
    found = tiktoken_encode(recipe(tokenizer), tokenizer)(EXACT_TEXTS)
    assert [ids.tolist() for ids in found] == list(map(tokenizer.encode, EXACT_TEXTS))


def test_a_sample_that_differs_is_believed(folder, monkeypatch):
    monkeypatch.setattr(tokenizer_engine, "GPT2_PATTERN", r"\S+|\s+")
    found, why = fastest(build_tokenizer(**settings("GPT2BPETokenizer", folder)), ["return x"])
    assert found is None and "tiktoken gives other ids for" in why


def test_null_reads_numbers():
    tokenizer = build_tokenizer(tokenizer_type="NullTokenizer", vocab_size=100)
    assert tokenizer.encode(" 5 17\n99 ") == [5, 17, 99] and tokenizer.eod == 99
    assert tokenizer.decode([5, 17]) == "5 17"
    with pytest.raises(ValueError, match="the id 100 is not one of 0 to 99"):
        tokenizer.encode("100")


def test_bytes():
    tokenizer = build_tokenizer(tokenizer_type="ByteLevelTokenizer")
    assert (tokenizer.vocab_size, tokenizer.eod) == (257, 256)
    assert tokenizer.decode([104, 105, 256]) == "hi"


TIK = {"tokenizer_type": "TikTokenizer", "tokenizer_model": "ok.json", "tiktoken_pattern": "v1"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tokenizer_type": "BertTokenizer"}, "--tokenizer-type BertTokenizer is unknown"),
        ({"tokenizer_type": "Llama2Tokenizer"}, "needs --tokenizer-model"),
        ({"tokenizer_type": "GPT2BPETokenizer"}, "needs --vocab-file and --merge-file"),
        ({"tokenizer_type": "NullTokenizer"}, "needs --vocab-size"),
        ({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "none"}, "none: there is no such file"),
        ({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "tiktoken"}, "is a tiktoken file, as Llama 3 has it"),
        ({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "junk"}, "is not a sentencepiece model"),
        ({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "empty"}, "is not a sentencepiece model"),
        ({"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "junk"}, "is not a file that the tokenizers"),
        ({"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "no/such"}, "neither a folder nor"),
        ({"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "."}, "holds no tokenizer.json"),
        ({"tokenizer_type": "TikTokenizer", "tokenizer_model": "tiktoken"}, "needs --tiktoken-pattern"),
        ({**TIK, "tokenizer_model": "tiktoken"}, "is not JSON.* HuggingFaceTokenizer"),
        ({**TIK, "tokenizer_model": "other.json"}, "is not a list such as"),
        ({**TIK, "tokenizer_model": "unordered.json"}, "the first 256 are not the bytes"),
        ({**TIK, "tokenizer_model": "twice.json"}, "the same bytes twice"),
        ({**TIK, "vocab_size": 1300}, r"300 tokens, but .* gives 256 to 257. Try --vocab-size 1257"),
        ({**TIK, "vocab_size": 1100}, "100 tokens, but"),
        ({**TIK, "tiktoken_num_special_tokens": 6}, "7 names for --tiktoken-num-special-tokens 6 ids"),
        ({**TIK, "tiktoken_special_tokens": ("</s>", "</s>")}, "Give each name once"),
    ],
)
def test_what_cannot_be_built_is_named(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiktoken").write_text("IQ== 0\nIg== 1\n")
    (tmp_path / "junk").write_text("not a model")
    (tmp_path / "empty").write_text("")
    entries = ranked([bytes([byte]) for byte in range(256)] + [b"re"])
    twice = [*entries, {**entries[-1], "rank": 257}]
    for name, content in (("ok", entries), ("unordered", entries[1:]), ("twice", twice), ("other", {"a": 1})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        build_tokenizer(**flags)


def test_a_trained_tokenizer_gives_source_code_back(tmp_path):
    library = tmp_path / "library"
    (library / "package/tests").mkdir(parents=True)
    for n in range(20):
        (library / f"package/m{n}.py").write_text(TEXT * (n + 1))
    (library / "package/tests/test_m.py").write_text(TEXT)
    (library / "latin1.py").write_bytes(b"# \xe9")
    built = build_stdlib_corpus(tmp_path / "c.jsonl", library)
    assert (built.files, built.skipped) == (20, 1)
    paths = [json.loads(line)["path"] for line in (tmp_path / "c.jsonl").open()]
    assert sorted(paths) == sorted(f"package/m{n}.py" for n in range(20)) and paths != sorted(paths)
    trained = train_tokenizer([str(tmp_path / "c.jsonl")], str(tmp_path / "t"), vocab_size=300)
    assert trained.exact == trained.texts == 20 and trained.vocab_size <= 300
    with pytest.raises(ValueError, match="--vocab-size 10"):
        train_tokenizer([str(tmp_path / "c.jsonl")], str(tmp_path / "u"), vocab_size=10)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.jsonl", "library", "t.model"]
