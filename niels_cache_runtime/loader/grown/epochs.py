"""The epochs of one source: how many samples each has, and where it begins in the run.

A source that never grew has the same number of samples in every epoch. If it has grown, the epoch that had begun keeps its samples, and
every later epoch has all of them. The state of a loader has these numbers (`phases`), so that any earlier step can still be found.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from niels_cache_runtime.format.layout import Ints

Phases = tuple[tuple[int, int], ...]


class Epochs:
    """The epochs of a source.

    phases: (first, samples), in ascending order: from the sample `first` of the source on, an epoch has `samples` samples. Samples are
        counted over the whole run. The first phase begins at 0, and every other phase at the end of an epoch.
    """

    def __init__(self, phases: Sequence[tuple[int, int]]) -> None:
        self.phases: Phases = tuple((int(first), int(samples)) for first, samples in phases)
        self._firsts = np.array([first for first, _ in self.phases], dtype=np.int64)
        self._samples = np.array([samples for _, samples in self.phases], dtype=np.int64)
        lengths = np.diff(self._firsts)
        self._epochs = np.concatenate([[0], np.cumsum(lengths // self._samples[:-1])]).astype(np.int64)  # the first epoch of each phase

    @property
    def first_epochs(self) -> list[int]:
        """The first epoch of each phase."""
        return self._epochs.tolist()

    @staticmethod
    def is_valid(phases: Sequence[tuple[int, int]]) -> bool:
        """Return whether these numbers can be phases."""
        if not phases or phases[0][0] != 0 or any(samples < 1 for _, samples in phases):
            return False
        pairs = pairwise(phases)
        return all(after > first and (after - first) % samples == 0 for (first, samples), (after, _) in pairs)

    def at(self, taken: Ints) -> tuple[Ints, Ints]:
        """Return the epochs and the places in these epochs of samples of the source (n,), both (n,) int64. Samples count from 0."""
        phases = self._firsts.searchsorted(taken, side="right") - 1
        epochs, places = np.divmod(taken - self._firsts[phases], self._samples[phases])
        return epochs + self._epochs[phases], places

    def read(self, taken: int) -> Fraction:
        """Return how often the source was read after `taken` samples: the whole epochs, and the share of the begun one."""
        (epoch,), (place,) = self.at(np.array([taken], dtype=np.int64))
        return Fraction(int(epoch)) + Fraction(int(place), int(self._samples[self.phase(int(epoch))]))

    def phase(self, epoch: int) -> int:
        """Return the number of the phase that an epoch belongs to."""
        return int(self._epochs.searchsorted(epoch, side="right")) - 1

    def start(self, epoch: int) -> int:
        """Return the first sample of an epoch."""
        phase = self.phase(epoch)
        first, samples = self.phases[phase]
        # Numbers of Python, because many epochs have more samples than an int64 can count.
        return first + (epoch - int(self._epochs[phase])) * samples

    def grown(self, taken: int, samples: int) -> "Epochs":
        """Return the epochs of a source that has `samples` samples now, and of which `taken` samples were read before it grew.

        The epoch that had begun keeps its samples. If none had begun, the next one already has all samples.
        """
        phase = int(self._firsts.searchsorted(taken, side="right")) - 1
        first, before = self.phases[phase]
        end = first - (first - taken) // before * before
        return Epochs([*(self.phases[: phase + 1] if end > first else self.phases[:phase]), (end, samples)])
