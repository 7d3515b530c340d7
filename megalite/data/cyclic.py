"""--dataloader-type cyclic: a data set without an end, in a new order each time round."""

import sys
from functools import lru_cache

import numpy as np
import torch

from megalite.data.batch import Dataset


class Cyclic:
    """Time round after time round of a data set, each in an order that follows from its number alone.

    Number e goes by torch.randperm seeded with e, over all samples. Megatron does the same on one data parallel rank
    with micro-batches that the samples divide into; on more ranks it permutes each rank's share apart, or with
    --no-data-sharding all samples but a remainder, so that there the order changes with the layout.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> np.ndarray:
        return self.dataset[self._number(index)]

    def check(self, index: int) -> None:
        """See `GPTDataset.check`."""
        self.dataset.check(self._number(index))

    def _number(self, index: int) -> int:
        epoch, place = divmod(index, len(self.dataset))
        return int(_order(epoch, len(self.dataset))[place])


@lru_cache(maxsize=2)  # Two, since threads may read ahead into the next.
def _order(epoch: int, samples: int) -> np.ndarray:
    return torch.randperm(samples, generator=torch.Generator().manual_seed(epoch)).numpy()
