"""Micro-batches as tensors: every rank reads just the samples it needs, and nothing is broadcast."""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Protocol
from weakref import finalize

import numpy as np
import torch

from megalite.data.sampler import micro_batch_samples

Read = Future[np.ndarray]
"""A sample that is being read."""


class Dataset(Protocol):
    """Samples of seq_length + 1 token ids."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> np.ndarray: ...

    def check(self, index: int) -> None:
        """ValueError where a sample has an id beyond the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward pass reads; b samples of s tokens."""

    tokens: torch.Tensor
    """Ids [b, s], int64."""
    labels: torch.Tensor
    """The next id of each token [b, s], int64."""
    loss_mask: torch.Tensor
    """1 where a label counts for the loss, else 0 [b, s], float32."""
    position_ids: torch.Tensor
    """The position of each token in its sequence [b, s], int64."""
    sample_ids: torch.Tensor
    """The place of each sample in the global batch [b], int64; dropout is a function of it."""
    segment_ids: torch.Tensor | None = None
    """The document of each token, counted within its sample [b, s], int64; None: tokens see all before them."""


@dataclass(frozen=True, kw_only=True)
class DocumentEnds:
    """What an end of document inside a sample does. It belongs to the document that it ends, as in Megatron."""

    eod: int
    """The id that ends a document."""
    mask_loss: bool = False
    """What follows it, the first token of some other document, does not count for the loss."""
    reset_positions: bool = False
    """Positions start again after it."""
    reset_attention: bool = False
    """Tokens after it do not see those before."""
    pad: int | None = None
    """An id that fills samples up, and does not count for the loss."""


class ReadAhead:
    """The samples of a data set, those that are expected next already read, or being read, by threads.

    Which samples come is for the caller to ask, so that nothing depends on how many threads there are, or on which of
    them is first; a sample is a function of its number, and no thread draws from a shared random generator.
    The threads end with this object, and with the program whatever they are waiting for.
    """

    def __init__(self, dataset: Dataset, threads: int) -> None:
        self.dataset = dataset
        self._read: dict[int, Read] = {}
        self._asked: SimpleQueue[tuple[int, Read] | None] = SimpleQueue()
        # Of an executor's threads Python waits for all that they were asked, a store that does not answer, perhaps.
        for number in range(threads):
            name = f"read-ahead-{number}"
            Thread(target=_read_what_is_asked, args=(dataset, self._asked), name=name, daemon=True).start()
        finalize(self, _end, self._asked, threads)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> np.ndarray:
        """A sample; an error of the thread that read it is raised here."""
        return self._read.pop(index).result() if index in self._read else self.dataset[index]

    def check(self, index: int) -> None:
        """See `Dataset`."""
        self.dataset.check(index)

    def expect(self, indices: Iterable[int]) -> None:
        """Begin to read these samples, and forget those that were expected before and did not come."""
        before, self._read = self._read, {}
        for index in indices:
            known = index in before
            self._read[index] = before.pop(index) if known else Future()
            if not known:
                self._asked.put((index, self._read[index]))
        for read in before.values():
            read.cancel()


def _read_what_is_asked(dataset: Dataset, asked: "SimpleQueue[tuple[int, Read] | None]") -> None:
    while (task := asked.get()) is not None:
        index, read = task
        if read.set_running_or_notify_cancel():
            try:
                read.set_result(dataset[index])
            except Exception as error:
                read.set_exception(error)


def _end(asked: "SimpleQueue[tuple[int, Read] | None]", threads: int) -> None:
    for _ in range(threads):
        asked.put(None)


def micro_batches(
    dataset: Dataset,
    consumed_samples: int,
    *,
    micro_batch_size: int,
    num_micro_batches: int,
    dp_rank: int,
    dp_size: int,
    device: torch.device,
    ends: DocumentEnds | None = None,
    vocab_size: int | None = None,
) -> list[MicroBatch]:
    """The micro-batches of one step for this data-parallel rank, after `consumed_samples` samples of the dataset.

    Without `ends` documents run on into one another.
    ValueError when the dataset ends within the step; the answer is the same on every rank. So it is with an id that is
    not below vocab_size (None: any are right), on the ranks which read it.
    """
    end = consumed_samples + micro_batch_size * num_micro_batches * dp_size
    if end > len(dataset):
        raise ValueError(
            f"the data have {len(dataset)} samples, but this step takes samples {consumed_samples} to {end - 1}: "
            f"more than --train-iters, --train-samples or --eval-iters asked for when they were built."
        )
    samples = micro_batch_samples(
        consumed_samples,
        micro_batch_size=micro_batch_size,
        num_micro_batches=num_micro_batches,
        dp_rank=dp_rank,
        dp_size=dp_size,
    )
    batches = []
    for indices in samples:
        text = torch.from_numpy(np.stack([dataset[index] for index in indices]))
        _check_vocabulary(dataset, indices, text, vocab_size)
        batches.append(_micro_batch(text.to(device), indices, consumed_samples, ends))
    if isinstance(dataset, ReadAhead):
        step = end - consumed_samples
        # Where the batch grows, the rest is read when it is asked for.
        dataset.expect(index + step for indices in samples for index in indices if index + step < len(dataset))
    return batches


def _check_vocabulary(dataset: Dataset, indices: range, text: torch.Tensor, vocab_size: int | None) -> None:
    """ValueError where an id [b, s + 1] is none: all at once, and sample by sample only to tell which."""
    least, most = (int(bound) for bound in text.aminmax())
    if vocab_size is not None and not 0 <= least <= most < vocab_size:
        for index in indices:
            dataset.check(index)
        raise ValueError(f"a sample has ids {least} to {most}, but the vocabulary has {vocab_size} entries.")


def _micro_batch(text: torch.Tensor, indices: range, consumed_samples: int, ends: DocumentEnds | None) -> MicroBatch:
    device = text.device
    tokens, labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    loss_mask = torch.ones(labels.shape, dtype=torch.float32, device=device)
    positions = torch.arange(tokens.shape[1], device=device).repeat(len(indices), 1)
    segments = None
    if ends is not None:
        ended = tokens == ends.eod
        if ends.pad is not None:
            loss_mask.masked_fill_(labels == ends.pad, 0.0)
        if ends.mask_loss:
            loss_mask.masked_fill_(ended, 0.0)
        if ends.reset_attention:
            segments = ended.cumsum(1) - ended.long()
        if ends.reset_positions:
            begins = torch.zeros_like(positions)
            begins[:, 1:] = torch.where(ended[:, :-1], positions[:, 1:], 0)
            positions -= begins.cummax(1).values
    return MicroBatch(
        tokens=tokens,
        labels=labels,
        loss_mask=loss_mask,
        position_ids=positions,
        sample_ids=torch.arange(indices.start, indices.stop, device=device) - consumed_samples,
        segment_ids=segments,
    )
