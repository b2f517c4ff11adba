"""Lots: runs of whole documents of a pretrain split. A phase of a run reads a lot to its end, so that the next can read other rows.

    stream     |doc|doc . |d|doc . . |doc|d|doc . . . . .|doc|     cut at the first end of a document from each multiple of `lot_tokens` on
    lots       | 0          | 1          | 2             ...|     the last lot takes the rest of the stream

No window crosses from one lot to the next, so up to T tokens at the end of a lot are in no window. `lot_order` says which lots a phase
reads.
"""

import numpy as np

from niels_cache_runtime.cache.opening import OpenedSplit
from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.loader.source import SourceBlocks
from niels_cache_runtime.loader.windows import PretrainWindows


class LotWindows(PretrainWindows):
    """PretrainWindows with `lot_tokens`, and without `stride`."""

    _arguments = ("T", "head", "lot_tokens")

    def _use(self, split: OpenedSplit) -> None:
        super()._use(split)
        self._lots, self._edges = self._block_edges(1)
        self._lot_samples = np.cumsum(np.append(0, (np.diff(self._edges) - 1) // self.T))
        self.samples = int(self._lot_samples[-1])
        self.tokens = self.samples * self.T

    def blocks(self, files: int) -> SourceBlocks:
        """Return the lots."""
        return SourceBlocks(samples=self._lot_samples, files=self._lots, tails=np.zeros_like(self._lots[1:]))

    def _windows_over(self, starts: Ints, ends: Ints, first: Ints | int = 0, stop: Ints | int | None = None) -> tuple[Ints, Ints]:
        lots = self._edges.searchsorted(starts, side="right") - 1
        edges = self._edges[lots]
        return super()._windows_over(starts - edges, ends - edges, self._lot_samples[lots], self._lot_samples[lots + 1])

    def _starts(self, numbers: Ints) -> Ints:
        numbers = self._checked(numbers, self.samples)
        lots = self._lot_samples.searchsorted(numbers, side="right") - 1
        return self._edges[lots] + (numbers - self._lot_samples[lots]) * self.T
