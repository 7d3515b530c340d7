"""Micro-batches: shapes, labels one further, and places in the global batch that no layout changes."""

import threading
import time

import numpy as np
import pytest
import torch

from megalite.data.batch import DocumentEnds, ReadAhead, micro_batches

SEQ = 5


class Counting:
    """Sample i is i*10, i*10 + 1, ..."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.ndarray:
        return np.arange(SEQ + 1) + index * 10


def batches(consumed, *, micro_batch_size=2, num_micro_batches=2, dp_rank=0, dp_size=1):
    return micro_batches(
        Counting(),
        consumed,
        micro_batch_size=micro_batch_size,
        num_micro_batches=num_micro_batches,
        dp_rank=dp_rank,
        dp_size=dp_size,
        device=torch.device("cpu"),
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
