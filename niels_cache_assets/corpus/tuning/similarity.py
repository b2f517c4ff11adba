"""How similar the documents of a data set are to earlier documents, from their stored signatures.

The search for duplicates stores the pairs that it found, and no pair below its threshold. Here the signatures are compared with fewer rows
in a band, so that pairs of lower similarity meet, too. A document counts with its most similar earlier document, in the order of the search
(see artifacts/duplicates.py). Exact duplicates are left out, because no threshold changes them.

Up to MOST documents are compared. Of a larger data set, a seeded sample of that size counts for all documents. The signatures of all data
sets that come before are read once, in blocks. The memory is about 1.2 kB for each compared document, and 6 bytes for every document of the
data sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.layout import duplicates_dir, duplicates_file
from niels_cache_assets.corpus.order import Inputs
from niels_cache_assets.corpus.prepared import open_documents
from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes, bands_for_recall
from niels_cache_assets.dedup.signatures import estimated_jaccard
from niels_cache_assets.random_numbers import TorchRandom
from niels_cache_runtime.format.meta import Meta

MOST = 100_000
BELOW = 0.25  # pairs are looked for down to the threshold less this
BINS = 100
_LEAST = 0.3
_MEMBERS = 8  # compared documents that a document meets in one bucket of a band
_PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A document and its most similar earlier document. `similarity`: estimated from the signatures. `is_dropped`: whether the search has
    dropped the document.
    """

    ordinal: int
    is_dropped: bool
    because_dataset: str
    because_ordinal: int
    similarity: float


@dataclass(frozen=True, kw_only=True)
class Similarities:
    """The similarities of the documents of a data set.

    `documents`: the number of documents without exact duplicates. `compared`: how many of them were compared. `counts`: (BINS,) the
    documents whose most similar earlier document has a similarity in [bin / BINS, (bin + 1) / BINS); the last bin also holds 1. The counts
    are those of all documents. `least`: pairs below this similarity are often missed. `pairs`: pairs on both sides of the threshold, the
    nearest first.
    """

    documents: int
    compared: int
    counts: NDArray[np.int64]
    least: float
    above: list[Pair]
    below: list[Pair]


def similarities(registry: Registry, name: str, *, root: Path, corpora: dict[str, Meta], seed: int, pairs: int) -> Similarities:
    """Compare the signatures. `corpora`: the meta.json of each corpus that the drop lists compare, in their order. `pairs`: how many pairs
    on each side of the threshold.
    """
    inputs = Inputs(registry, root, corpora)
    number = [each.name for each in inputs.all].index(name)
    own = inputs.all[number]
    is_exact, is_dropped = np.zeros(len(own.order), dtype=bool), np.zeros(len(own.order), dtype=bool)
    with open_documents(duplicates_dir(root) / duplicates_file(name)) as parquet:
        dropped = parquet.read(columns=["ordinal", "kind"])
    is_dropped[dropped["ordinal"].to_numpy()] = True
    is_exact[dropped["ordinal"].to_numpy()[dropped["kind"].to_numpy(zero_copy_only=False) == "exact"]] = True
    before = sum(len(each.order) for each in inputs.all[:number])
    places = np.flatnonzero(~is_exact[own.order])  # in the order of the search
    documents = len(places)
    if documents > MOST:
        places = np.sort(places[TorchRandom(seed).permutation(documents)[:MOST]])
    threshold = registry.dedup.threshold
    least = max(_LEAST, threshold - BELOW)
    with own.slots() as rows:
        ordinals = own.order[places]
        by_ordinal = np.argsort(ordinals)
        slots = np.empty((len(places), rows.width), dtype=np.uint32)
        slots[by_ordinal] = rows[ordinals[by_ordinal]]
    best, because = _most_similar(inputs, number, slots, places + before, least)
    counts = np.bincount(np.minimum((best * BINS).astype(np.int64), BINS - 1), minlength=BINS)
    above, below = _nearest(best, threshold, pairs)

    def pairs_of(chosen: NDArray[np.int64]) -> list[Pair]:
        corpora_of, others = inputs.places(because[chosen])
        return [
            Pair(
                ordinal=ordinal,
                is_dropped=bool(is_dropped[ordinal]),
                because_dataset=inputs.all[corpus].name,
                because_ordinal=other,
                similarity=similarity,
            )
            for ordinal, corpus, other, similarity in zip(
                ordinals[chosen].tolist(), corpora_of.tolist(), others.tolist(), best[chosen].tolist(), strict=True
            )
        ]

    scale = documents / max(len(places), 1)
    return Similarities(
        documents=documents,
        compared=len(places),
        counts=np.rint(counts * scale).astype(np.int64),
        least=least,
        above=pairs_of(above),
        below=pairs_of(below),
    )


def _nearest(best: NDArray[np.float64], threshold: float, pairs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the documents at or above the threshold, and those below it, the nearest first."""
    order = np.argsort(best, kind="stable")
    middle = int(np.searchsorted(best[order], threshold, side="left"))
    below = order[:middle][::-1]
    return order[middle : middle + pairs], below[best[below] > 0][:pairs]


def _most_similar(
    inputs: Inputs, number: int, slots: NDArray[np.uint32], positions: NDArray[np.int64], least: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return for each compared document the similarity of its most similar earlier document (0: none met it), and the position of that
    document. positions: (n,) ascending, the positions of the compared documents in the order of all corpora.
    """
    best, because = np.zeros(len(slots)), np.full(len(slots), -1, dtype=np.int64)
    if not len(slots):
        return best, because
    bands, rows = bands_for_recall(least, slots.shape[1])
    hashes = band_hashes(slots, bands, rows)
    order = np.argsort(hashes, axis=0, kind="stable").astype(np.uint32)
    sorted_hashes = np.take_along_axis(hashes, order, axis=0)
    del hashes
    first = 0
    for each in inputs.all[: number + 1]:
        for block in each.signatures():
            if first <= positions[-1]:
                keys = band_hashes(block.slots, bands, rows)
                for earlier, later in _meetings(keys, sorted_hashes, order, first, positions):
                    similarity = estimated_jaccard(block.slots[earlier], slots[later])
                    # The last of equal keys wins, so sort by similarity, and of equal ones the earliest document last.
                    ascending = np.lexsort((-earlier, similarity))
                    earlier, later, similarity = earlier[ascending], later[ascending], similarity[ascending]
                    is_better = similarity > best[later]
                    best[later[is_better]] = similarity[is_better]
                    because[later[is_better]] = earlier[is_better] + first
            first += len(block)
    return best, because


def _meetings(
    keys: NDArray[np.uint64], sorted_hashes: NDArray[np.uint64], order: NDArray[np.uint32], first: int, positions: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs (document of the block, compared document) that share a band, each pair once, the earlier one first."""
    found = []
    for band in range(keys.shape[1]):
        low = np.searchsorted(sorted_hashes[:, band], keys[:, band], side="left")
        size = np.searchsorted(sorted_hashes[:, band], keys[:, band], side="right") - low
        size[keys[:, band] == NO_BUCKET] = 0
        for step in range(_MEMBERS):
            own = np.flatnonzero(size > step)
            if not len(own):
                break
            # Of a large bucket, each document meets other members, so that all members meet some.
            later = order[low[own] + (own + step) % size[own], band].astype(np.int64)
            found.append(own * len(positions) + later)
    if not found:
        return
    pairs = np.unique(np.concatenate(found))
    earlier, later = np.divmod(pairs, len(positions))
    is_earlier = earlier + first < positions[later]
    earlier, later = earlier[is_earlier], later[is_earlier]
    for start in range(0, len(earlier), _PAIRS_AT_ONCE):
        yield earlier[start : start + _PAIRS_AT_ONCE], later[start : start + _PAIRS_AT_ONCE]
