"""A loader's order as a map-style Dataset, for code with its own sampler or batching.

Every access reads only the requested rows; `__getitems__` reads a whole list with one gather per source.
"""

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from niels_cache_runtime.cache.checks import check_index
from niels_cache_runtime.loader.batch import Batch, BatchMaker
from niels_cache_runtime.loader.preference.batch import PreferenceBatch
from niels_cache_runtime.loader.run_order import RunOrder

Sample = dict[str, Any]
_BY_ROW = ("x", "y", "y_masked", "document_ids", "position_ids", "dataset_ids", "weights")


class SampleDataset(Dataset[Sample]):
    """A Dataset whose item k is sample k of a loader's run. `TokenLoader.as_dataset` makes it.

    An item is a dict with one row of each field of a batch: `x` and `y`, (T,) int64, and the loader's other fields. `cu_seqlens` belongs to
    whole batches and is not included. For preference pairs, an item has such a dict for `chosen`, and one for `rejected`.

    Items are already in the loader's order, so use a sequential sampler, or `DistributedSampler(shuffle=False)`. A negative index counts
    from the end. The object can be pickled.

    Raises:
        IndexError: From `dataset[k]`, for an index out of range.
        TypeError: From `dataset[k]`, for an index that is not a whole number.
    """

    def __init__(self, maker: BatchMaker, mixture: RunOrder, length: int) -> None:
        self._maker, self._run_order, self._length = maker, mixture, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        """Return the samples at `indices`, in this order, with one gather for each source."""
        if not indices:
            return []
        samples = np.array([check_index(index, self._length, what="sample", from_end=True) for index in indices], dtype=np.int64)
        batch = self._maker.make(self._run_order.locate(samples))
        if isinstance(batch, PreferenceBatch):
            pairs = zip(_rows(batch.chosen), _rows(batch.rejected), strict=True)
            return [{"chosen": chosen, "rejected": rejected} for chosen, rejected in pairs]
        return _rows(batch)


def _rows(batch: Batch) -> list[Sample]:
    present = {name: rows for name in _BY_ROW if (rows := getattr(batch, name)) is not None}
    return [{name: rows[row] for name, rows in present.items()} for row in range(len(batch.x))]
