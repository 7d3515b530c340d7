"""Micro-batches: shapes, labels one further, and places in the global batch that no layout changes."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from megalite.data.batch import DocumentEnds, ReadAhead, micro_batches
from megalite.data.cyclic import Cyclic
from megalite.data.fill_in_the_middle import FillInTheMiddle, Middle
from megalite.data.tokenizer import build_tokenizer

ROOT = Path(__file__).parents[2]
SEQ = 5


class Counting:
    """Sample i is i*10, i*10 + 1, ..."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.ndarray:
        return np.arange(SEQ + 1) + index * 10

    def check(self, index: int) -> None:
        raise ValueError(f"{index} is looked at")


def batches(consumed, *, micro_batch_size=2, num_micro_batches=2, dp_rank=0, dp_size=1, dataset=None, **given):
    return micro_batches(
        dataset or Counting(),
        consumed,
        micro_batch_size=micro_batch_size,
        num_micro_batches=num_micro_batches,
        dp_rank=dp_rank,
        dp_size=dp_size,
        device=torch.device("cpu"),
        **given,
    )


def test_what_a_micro_batch_holds():
    first, second = batches(8, dp_rank=1, dp_size=2)
    assert first.tokens.tolist() == [[100, 101, 102, 103, 104], [110, 111, 112, 113, 114]]
    assert first.labels.tolist() == [[101, 102, 103, 104, 105], [111, 112, 113, 114, 115]]
    assert second.tokens[:, 0].tolist() == [140, 150]
    assert first.loss_mask.tolist() == [[1.0] * SEQ] * 2 and first.loss_mask.dtype == torch.float32
    assert first.position_ids.tolist() == [list(range(SEQ))] * 2
    assert (first.sample_ids.tolist(), second.sample_ids.tolist()) == ([2, 3], [6, 7])
    for name in ("tokens", "labels", "position_ids", "sample_ids"):
        assert getattr(first, name).dtype == torch.int64 and getattr(first, name).is_contiguous()


@pytest.mark.parametrize(("micro_batch_size", "dp_size"), [(1, 1), (4, 1), (1, 4), (2, 2), (8, 1)])
def test_the_global_batch_is_the_same_in_every_layout(micro_batch_size, dp_size):
    number = 8 // (micro_batch_size * dp_size)
    pairs = [
        (int(sample), int(tokens[0]))
        for rank in range(dp_size)
        for batch in batches(
            16, micro_batch_size=micro_batch_size, num_micro_batches=number, dp_rank=rank, dp_size=dp_size
        )
        for sample, tokens in zip(batch.sample_ids, batch.tokens, strict=True)
    ]
    assert sorted(pairs) == [(i, (16 + i) * 10) for i in range(8)]


def test_the_end_of_the_data_is_said_on_every_rank():
    assert len(batches(36)) == 2
    for rank in range(2):
        with pytest.raises(ValueError, match=r"have 40 samples, but this step takes samples 36 to 43.*--train-iters"):
            batches(36, dp_rank=rank, dp_size=2)


class Documents:
    """One sample: an empty document, two that end inside it, and one that goes on beyond it."""

    text = (9, 1, 2, 9, 3, 9, 4, 5)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array(self.text)


def document_batch(**effects):
    (found,) = micro_batches(
        Documents(),
        0,
        micro_batch_size=2,
        num_micro_batches=1,
        dp_rank=0,
        dp_size=1,
        device=torch.device("cpu"),
        ends=DocumentEnds(eod=9, **effects),
    )
    return found


PLAIN = {"loss_mask": [1] * 7, "position_ids": [0, 1, 2, 3, 4, 5, 6], "segment_ids": None}


@pytest.mark.parametrize(
    ("effects", "changed"),
    [
        ("", {}),
        ("mask_loss", {"loss_mask": [0, 1, 1, 0, 1, 0, 1]}),
        ("reset_positions", {"position_ids": [0, 0, 1, 2, 0, 1, 0]}),
        ("reset_attention", {"segment_ids": [0, 1, 1, 1, 2, 2, 3]}),
    ],
)
def test_an_end_of_document_belongs_to_the_document_it_ends(effects, changed):
    """Each effect by itself, worked out by hand: tokens 9 1 2 9 3 9 4 with labels 1 2 9 3 9 4 5."""
    batch = document_batch(**dict.fromkeys(effects.split(), True))
    for name, row in {**PLAIN, **changed}.items():
        tensor = getattr(batch, name)
        assert (tensor if tensor is None else tensor.tolist()) == (row and [row, row]), name
    assert batch.position_ids.dtype == torch.int64 and batch.loss_mask.dtype == torch.float32
    assert batch.segment_ids is None or batch.segment_ids.dtype == torch.int64


def test_batches_share_no_tensor():
    """What is done to one batch in place must not be seen in the next."""
    effects = {"mask_loss": True, "reset_positions": True, "reset_attention": True}
    spoilt = document_batch(**effects)
    for tensor in vars(spoilt).values():
        tensor.zero_()
    fresh = document_batch(**effects)
    assert fresh.loss_mask[0].tolist() == [0, 1, 1, 0, 1, 0, 1]
    assert fresh.position_ids[1].tolist() == [0, 0, 1, 2, 0, 1, 0]
    assert fresh.tokens[0].tolist() == list(Documents.text[:-1])


def test_what_fills_a_sample_up_does_not_count():
    labels = torch.tensor(Documents.text[1:])
    batch = document_batch(pad=4)
    assert batch.loss_mask[0].tolist() == (labels != 4).to(torch.float32).tolist() and not batch.loss_mask.all()


class Slow(Counting):
    """Takes its time, and remembers who read what; a sample cannot be read."""

    def __init__(self) -> None:
        self.readers: dict[int, str] = {}

    def __getitem__(self, index: int) -> np.ndarray:
        self.readers[index] = threading.current_thread().name
        time.sleep(0.002 * (index % 3))
        if index == 29:
            raise ValueError("29 is damaged")
        return super().__getitem__(index)


STEPS = [(0, 2), (4, 2), (8, 3), (14, 1), (16, 2), (0, 2), (20, 2), (24, 2), (36, 2)]
"""Where steps begin and their micro-batches: batches that grow and shrink, and a resumption elsewhere."""


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_reading_ahead_changes_no_batch(threads):
    before = torch.random.get_rng_state()
    slow = Slow()
    ahead = ReadAhead(slow, threads)
    for consumed, number in STEPS:
        for dataset, found in ((slow, []), (ahead, [])):
            found += micro_batches(
                dataset,
                consumed,
                micro_batch_size=2,
                num_micro_batches=number,
                dp_rank=0,
                dp_size=1,
                device=torch.device("cpu"),
            )
            tokens = torch.cat([batch.tokens for batch in found])
            assert tokens[:, 0].tolist() == [10 * index for index in range(consumed, consumed + 2 * number)]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_next_samples_are_read_by_others():
    slow = Slow()
    ahead = ReadAhead(slow, 2)
    for consumed in range(0, 40, 4):
        try:
            micro_batches(
                ahead,
                consumed,
                micro_batch_size=1,
                num_micro_batches=2,
                dp_rank=1,
                dp_size=2,
                device=torch.device("cpu"),
            )
        except ValueError as error:
            assert str(error) == "29 is damaged" and consumed == 28
    mine = threading.current_thread().name
    assert [index for index, reader in slow.readers.items() if reader == mine] == [1, 3, 33, 35]
    assert sorted(slow.readers) == list(range(1, 40, 2))


def test_threads_end_with_what_they_read_for():
    ahead = ReadAhead(Slow(), 3)
    ahead.expect(range(20))
    assert len(readers()) == 3
    del ahead
    until = time.monotonic() + 10
    while readers():
        assert time.monotonic() < until
        time.sleep(0.01)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


STUCK = """
import sys, time, numpy as np
from megalite.data.batch import ReadAhead

class Stuck:
    def __len__(self): return 40
    def __getitem__(self, index): time.sleep(60)
    def check(self, index): pass

ahead = ReadAhead(Stuck(), 2)
ahead.expect(range(40))
sys.exit("the run fails")
"""


def test_a_run_that_fails_does_not_wait_for_what_is_being_read():
    """A store that does not answer is tried again for a while, for each sample that was asked for."""
    done = subprocess.run([sys.executable, "-c", STUCK], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (1, "the run fails\n")


BYTES = build_tokenizer(tokenizer_type="ByteLevelTokenizer")
WRAPPED = {
    "bare": lambda data: data,
    "read ahead": lambda data: ReadAhead(data, 1),
    "cyclic": Cyclic,
    "cut": lambda data: FillInTheMiddle(
        data, Middle(rate=0, spm_rate=0, prefix=1, middle=2, suffix=3, pad=4), BYTES, seed=0
    ),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_an_id_beyond_the_vocabulary_is_found_in_any_batch(wrapped):
    """The batch is looked at as a whole; the data set tells which sample it was, and of which document."""
    data = WRAPPED[wrapped](Counting())
    assert len(batches(0, dataset=data, vocab_size=400)) == 2
    (first,) = batches(0, dataset=data, num_micro_batches=1, vocab_size=400)
    with pytest.raises(ValueError, match=rf"^{first.tokens[0, 0] // 10} is looked at"):
        batches(0, dataset=data, num_micro_batches=1, vocab_size=5)


def test_an_id_that_no_document_holds_is_told_as_well(monkeypatch):
    monkeypatch.setattr(Counting, "check", lambda self, index: None)
    with pytest.raises(ValueError, match="a sample has ids 0 to 15, but the vocabulary has 15 entries"):
        batches(0, vocab_size=15)
    assert len(batches(0, num_micro_batches=1, vocab_size=16)) == 1
