"""Fill in the middle: what is rearranged, how often, and that it depends on seed and sample alone."""

import re

import numpy as np
import pytest

from megalite.data.fill_in_the_middle import FillInTheMiddle, Middle, special_id
from megalite.data.tokenizer import build_tokenizer

BYTES = build_tokenizer(tokenizer_type="ByteLevelTokenizer")
TEXTS = ["def f(x):\n    return x", "", "# a comment", "näive café \U0001f9ff", "import os"]
PREFIX, MIDDLE, SUFFIX, PAD = (BYTES.encode(mark)[0] for mark in "\x01\x02\x03\x04")


def tokens(texts: list[str]) -> np.ndarray:
    return np.array([token for text in texts for token in [*BYTES.encode(text), BYTES.eod]][:-1], np.int64)


class Samples:
    """The same documents in every sample."""

    def __init__(self, sample: np.ndarray) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 150

    def __getitem__(self, index: int) -> np.ndarray:
        return self.sample


def filled(sample: np.ndarray | None = None, *, seed: int = 1, rate: float = 1.0, spm_rate: float = 0.5, **settings):
    middle = Middle(rate=rate, spm_rate=spm_rate, prefix=PREFIX, middle=MIDDLE, suffix=SUFFIX, pad=PAD, **settings)
    return FillInTheMiddle(Samples(tokens([*TEXTS, "x" * 40]) if sample is None else sample), middle, BYTES, seed=seed)


def documents(sample: np.ndarray) -> list[str]:
    ends = np.flatnonzero(sample == BYTES.eod)
    return [BYTES.decode([t for t in part.tolist() if t != BYTES.eod]) for part in np.split(sample, ends)]


PSM = re.compile("\x01([^\x01-\x04]*)\x03([^\x01-\x04]*)\x02([^\x01-\x04]*)", re.S)
SPM = re.compile("\x01\x03([^\x01-\x04]*)\x02([^\x01-\x04]*)", re.S)


def restored(document: str) -> str:
    """Put together again."""
    if found := SPM.fullmatch(document):
        return found[2] + found[1]
    if found := PSM.fullmatch(document):
        return found[1] + found[3] + found[2]
    assert not set(document) & set("\x01\x02\x03")
    return document


@pytest.mark.parametrize(("rate", "spm_rate"), [(0.0, 0.5), (1.0, 0.0), (1.0, 1.0), (0.5, 0.5)])
def test_every_document_can_be_put_together_again(rate, spm_rate):
    data, plain = filled(rate=rate, spm_rate=spm_rate), tokens([*TEXTS, "x" * 40])
    changed = []
    for sample in (data[i] for i in range(len(data))):
        assert sample.dtype == np.int64 and len(sample) == len(plain)
        *whole, cut = documents(sample)
        assert [restored(document) for document in whole] == TEXTS
        assert set(cut) <= set("\x01\x02\x03x")
        changed += [document for document in whole if document and set(document) & set("\x01\x02\x03")]
    shares = (len(changed) / (4 * len(data)), sum(SPM.fullmatch(d) is not None for d in changed) / max(1, len(changed)))
    # An empty first part reads like the other order; of texts as long as these one in seven has one.
    if rate == 0.5:
        assert shares == pytest.approx((0.5, 0.5 + 0.5 / 7), abs=0.08)
    elif rate:
        assert shares[1] == 1 if spm_rate else shares[1] < 0.2


def test_what_a_sample_becomes_follows_from_seed_and_number():
    """Whichever samples were read before, and by whom."""
    data, again, other = filled(), filled(), filled(seed=2)
    assert [again[i].tolist() for i in (7, 3, 149)] == [data[i].tolist() for i in (7, 3, 149)]
    assert data[3].tolist() != data[7].tolist() and data[3].tolist() != other[3].tolist()


def test_a_character_that_the_sample_cuts_is_kept():
    """Half a character cannot be said as text: then the cut lies between tokens, and no byte is lost."""
    sample = np.array([*BYTES.encode("abcé")[:-1], BYTES.eod, *BYTES.encode("ffffffff")], np.int64)
    for i in range(20):
        first = filled(sample)[i][:8].tolist()
        first = first[: first.index(BYTES.eod)] if BYTES.eod in first else first
        assert sorted(set(first) - {PREFIX, MIDDLE, SUFFIX}) == sorted(sample[:4].tolist())


def test_fragments_are_treated_by_themselves():
    data = filled(tokens(["one;two;three" + " " * 30]), separator=BYTES.encode(";")[0], fragment_rate=1.0)
    for i in range(20):
        one, two, _ = BYTES.decode(data[i].tolist()).split(";")
        assert [restored(one), restored(two)] == ["one", "two"] and "\x02" in one and "\x02" in two
    untouched = filled(tokens(["one;two;three"]), separator=BYTES.encode(";")[0], fragment_rate=0.0)
    assert untouched[0].tolist() == tokens(["one;two;three"]).tolist()


def test_documents_that_are_left_as_they_are():
    for sample in (filled(untouched="#")[i] for i in range(20)):
        assert documents(sample)[2] == "# a comment" and documents(sample)[0] != TEXTS[0]


def test_a_sample_that_became_shorter_is_filled_up(monkeypatch):
    monkeypatch.setattr(
        BYTES, "encode_batch", lambda texts: [np.array(BYTES.encode(text.replace("xx", "y"))) for text in texts], False
    )
    sample = filled(tokens(["x" * 40]))[0]
    assert len(sample) == 40 and sample[-10:].tolist() == [PAD] * 10


def test_the_id_of_a_spelling():
    assert special_id(BYTES, "\x01", "--fim-prefix-token") == PREFIX
    with pytest.raises(ValueError, match=r"--fim-prefix-token <fim_prefix> is 12 tokens of this vocabulary"):
        special_id(BYTES, "<fim_prefix>", "--fim-prefix-token")
