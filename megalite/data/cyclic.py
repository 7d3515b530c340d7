"""--dataloader-type cyclic: a data set without an end, in a new order each time round."""

import sys

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
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> np.ndarray:
        epoch, place = divmod(index, len(self.dataset))
        if epoch != self._epoch:
            seeded = torch.Generator().manual_seed(epoch)
            self._epoch, self._order = epoch, torch.randperm(len(self.dataset), generator=seeded).numpy()
        return self.dataset[int(self._order[place])]
