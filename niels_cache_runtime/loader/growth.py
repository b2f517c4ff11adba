"""The samples of each epoch before and after a cache has grown, and the proof that the old cache is the beginning of the new one.

A loader needs both to load a state that was saved before the growth. A data set in parts grows by whole parts, and meta.json lists the
parts. So an earlier cache ended where a part ends. Its fingerprint follows from the entries of its shards and from the first document ends,
which are read once.

A source that never grew has the same number of samples in every epoch. If it has grown, the epoch that had begun keeps its samples, and
every later epoch has all of them. The state of a loader has these numbers (`phases`), so that any earlier step can still be found.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from niels_cache_runtime.cache.opening import listed_of_split, part_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints, doc_ends_name, shard_name
from niels_cache_runtime.format.meta import content_sha256
from niels_cache_runtime.loader.packing.documents import PackedDocuments, doc_ends_entry
from niels_cache_runtime.loader.source import NamedSources
from niels_cache_runtime.loader.windows import PretrainWindows

Phases = tuple[tuple[int, int], ...]


class Epochs:
    """The epochs of a source.

    Args:
        phases: (first, samples), in ascending order: from the sample `first` of the source on, an epoch has `samples` samples. Samples are
            counted over the whole run. The first phase begins at 0, and every other phase at the end of an epoch.
        first_epochs: The first epoch of each phase. None counts epochs from 0.

    Attributes:
        first_epochs: (phases,) int64, the first epoch of each phase.
    """

    def __init__(self, phases: Sequence[tuple[int, int]], first_epochs: Sequence[int] | None = None) -> None:
        self.phases = tuple((int(first), int(samples)) for first, samples in phases)
        self._firsts = np.array([first for first, _ in self.phases], dtype=np.int64)
        self._samples = np.array([samples for _, samples in self.phases], dtype=np.int64)
        lengths = np.diff(self._firsts)
        counted = np.concatenate([[0], np.cumsum(lengths // self._samples[:-1])]) if first_epochs is None else first_epochs
        self.first_epochs = np.asarray(counted, dtype=np.int64)

    @staticmethod
    def is_valid(phases: Sequence[tuple[int, int]]) -> bool:
        """Return whether these numbers can be phases."""
        if not phases or phases[0][0] != 0 or any(samples < 1 for _, samples in phases):
            return False
        return all(after > first and (after - first) % samples == 0 for (first, samples), (after, _) in pairwise(phases))

    def at(self, taken: Ints) -> tuple[Ints, Ints]:
        """Return the epochs of samples of the source, and the places in these epochs, both (n,) int64.

        Args:
            taken: (n,), the numbers of the samples over the whole run, counted from 0.
        """
        phases = self._firsts.searchsorted(taken, side="right") - 1
        epochs, places = np.divmod(taken - self._firsts[phases], self._samples[phases])
        return epochs + self.first_epochs[phases], places

    def read(self, taken: int) -> Fraction:
        """Return how often the source was read after `taken` samples: the whole epochs, and the share of the begun one."""
        (epoch,), (place,) = self.at(np.array([taken], dtype=np.int64))
        return Fraction(int(epoch)) + Fraction(int(place), int(self._samples[self.phase(int(epoch))]))

    def phase(self, epoch: int) -> int:
        """Return the number of the phase that an epoch belongs to."""
        return int(self.first_epochs.searchsorted(epoch, side="right")) - 1

    def start(self, epoch: int) -> int:
        """Return the first sample of an epoch."""
        phase = self.phase(epoch)
        first, samples = self.phases[phase]
        # Numbers of Python, because many epochs have more samples than an int64 can count.
        return first + (epoch - int(self.first_epochs[phase])) * samples

    def grown(self, taken: int, samples: int) -> "Epochs":
        """Return the epochs of a source that has `samples` samples now, and of which `taken` samples were read before it grew.

        The epoch that had begun keeps its samples. If none had begun, the next one already has all samples.
        """
        phase = int(self._firsts.searchsorted(taken, side="right")) - 1
        first, before = self.phases[phase]
        end = first - (first - taken) // before * before
        return Epochs([*(self.phases[: phase + 1] if end > first else self.phases[:phase]), (end, samples)])


class CopyEpochs(Epochs):
    """The epochs of a source that reads itself and its copies in turn.

    Args:
        samples: The number of samples of the source and of each copy.
    """

    def __init__(self, samples: Sequence[int]) -> None:
        *firsts, self._all = accumulate(samples, initial=0)
        super().__init__([*zip(firsts, samples, strict=True)], range(len(samples)))

    def at(self, taken: Ints) -> tuple[Ints, Ints]:
        rounds, taken = np.divmod(taken, self._all)
        epochs, places = super().at(taken)
        return epochs + rounds * len(self.phases), places

    def phase(self, epoch: int) -> int:
        return epoch % len(self.phases)

    def start(self, epoch: int) -> int:
        return epoch // len(self.phases) * self._all + self.phases[self.phase(epoch)][0]


def resumed_phases(state: Mapping[str, Any], sources: NamedSources, taken: Sequence[int], *, grown: bool) -> dict[str, Phases]:
    """Return the phases of the sources that have grown, now or before the state was saved, by name.

    Sources that differ in another way are left out, and the caller raises an error for them.

    Args:
        state: The saved state.
        sources: The open sources.
        taken: How many samples of each source the run has read.
        grown: Whether sources may have grown since the state was saved.

    Raises:
        NielsCacheError: If the state's own phases do not fit a source, or if a source has grown since a DataLoader worker saved the state.
    """
    found: dict[str, Phases] = {}
    for (name, source), count in zip(sources.items(), taken, strict=True):
        saved = state["sources"].get(name)
        if saved is None:
            continue
        phases = saved.get("phases") or [(0, saved["samples"])]
        if saved["fingerprint"] == source.fingerprint:
            if phases[-1][1] != source.samples:
                raise NielsCacheError(f"state: has {phases[-1][1]} samples of {name}, but its cache has {source.samples}; it was edited")
            if len(phases) > 1:
                found[name] = Epochs(phases).phases
        elif grown and state.get("worker") is not None:
            raise NielsCacheError(
                f"{name}: grown=True does not go with a state of a DataLoader worker, whose cache has changed; save "
                f"loader.state_dict(steps=batches taken) in the main process, or restore the cache"
            )
        elif (
            grown
            and isinstance(source, PretrainWindows)
            and saved["fingerprint"] in _earlier_fingerprints(source, phases[-1][1], saved.get("documents", ()))
        ):
            found[name] = Epochs(phases).grown(count, source.samples).phases
    return found


def earlier_epochs(phases: Phases, documents: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the epochs of a source of packed documents before it has grown, as DocumentPacking has them.

    Args:
        phases: The phases of the source.
        documents: The documents of the phases of the saved state.
    """
    return tuple(zip(Epochs(phases).first_epochs[1:].tolist(), documents, strict=False))


def _earlier_fingerprints(source: PretrainWindows, samples: int, phases: Sequence[int]) -> Iterator[str]:
    """Yield the fingerprint of each cache that this one may have been, if it had so many samples, or these documents in its phases."""
    parts = None if source.meta is None else part_ends(source.meta, source.path)
    if source.meta is None or source.doc_ends is None or parts is None:
        return
    listed = listed_of_split(source.meta, source.path, doc_ends=True)
    for _, shards, tokens, documents in parts[:-1]:
        if isinstance(source, PackedDocuments):
            may_be = [documents] == [*phases[-1:]]
        else:
            may_be = tokens > source.T and source.count_samples(tokens) == samples
        if may_be:
            files = {name: listed[name] for name in (f"{source.split}/{shard_name(number)}" for number in range(shards))}
            files[doc_ends_name(source.split)] = doc_ends_entry(source.doc_ends[:documents])
            yield content_sha256(files)
