"""Micro-batches as tensors: every rank reads just the samples it needs, and nothing is broadcast."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from megalite.data.sampler import micro_batch_samples


class Dataset(Protocol):
    """Samples of seq_length + 1 token ids."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> np.ndarray: ...


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


def micro_batches(
    dataset: Dataset,
    consumed_samples: int,
    *,
    micro_batch_size: int,
    num_micro_batches: int,
    dp_rank: int,
    dp_size: int,
    device: torch.device,
) -> list[MicroBatch]:
    """The micro-batches of one step for this data-parallel rank, after `consumed_samples` samples of the dataset.

    ValueError when the dataset ends within the step; the answer is the same on every rank.
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
    return [_micro_batch(dataset, indices, consumed_samples, device) for indices in samples]


def _micro_batch(dataset: Dataset, indices: range, consumed_samples: int, device: torch.device) -> MicroBatch:
    text = torch.from_numpy(np.stack([dataset[index] for index in indices])).to(device)
    tokens, labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    return MicroBatch(
        tokens=tokens,
        labels=labels,
        loss_mask=torch.ones(labels.shape, dtype=torch.float32, device=device),
        position_ids=torch.arange(tokens.shape[1], device=device).repeat(len(indices), 1),
        sample_ids=torch.arange(indices.start, indices.stop, device=device) - consumed_samples,
    )
