"""The documents of train that are near to a document of val, and that the bands of the search have missed.

The bands of a search without `verify` are balanced, so about one pair in five at a similarity of 0.9 shares none. Such a pair of two
documents of train does little harm, but one of train and val does. So each kept document of train is compared once more with the kept
documents of val: by bands that miss few pairs, then by the estimate of their signatures, and then by their texts. The later document of a
pair in the order of comparison is dropped, as in the search itself.

The cost is one more pass over the signatures of train for each million documents of val, and the texts of the few documents that seem to
be near. The memory is 2 bytes for each document, at most about 800 MB for documents of val, and 16 bytes for each pair that seems near.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from niels_cache_assets.corpus.order import CorpusInputs
from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes, bands_for_recall
from niels_cache_assets.dedup.settings import DedupSettings
from niels_cache_assets.dedup.signatures import estimated_jaccard
from niels_cache_assets.dedup.text_set import HashIndex
from niels_cache_runtime.format.layout import SPLITS

if TYPE_CHECKING:
    from niels_cache_assets.dedup.greedy import DropDecisions

_MAX_COMPARED = 64  # documents of val, of those compared at once, that share a band with one document of train
_VAL_AT_ONCE = 1 << 20
_SIGMAS = 4  # a pair whose estimate is this many standard deviations below the threshold is not compared by its texts


def drop_near_val(
    inputs: CorpusInputs, dropped: DropDecisions, settings: DedupSettings, *, path: Path, log: Callable[[str], None]
) -> DropDecisions:
    """Return the dropped documents, with those of train and val that are near to each other.

    A document that was dropped because of one that is dropped now gets the reason of that one.

    Args:
        inputs: The corpora.
        dropped: The documents that the search has dropped.
        settings: The table [dedup].
        path: A file for the shingles of the compared texts, which the caller removes.
        log: Called with each message.
    """
    pairs = _candidates(inputs, dropped, settings)
    if not pairs.size:
        return dropped
    dtype = dropped.ordinals.dtype
    positions = np.unique(pairs).astype(dtype)
    log(f"comparing the texts of {len(positions):,} documents of train and val")
    because: dict[int, tuple[int, float]] = {}  # ascending, like `pairs`
    similarity = inputs.similarity(positions, ngram=settings.ngram, units=settings.units, path=path)
    for one, other in zip(*pairs.tolist(), strict=True):
        if one not in because and other not in because and (measured := similarity(other, one)) >= settings.threshold:
            because[one] = (other, measured)
    if not because:
        return dropped
    found, similarities = zip(*because.values(), strict=True)
    ones, others = np.array([*because], dtype=dtype), np.array(found, dtype=dtype)
    index = np.minimum(np.searchsorted(ones, dropped.kept_copies), len(ones) - 1)
    moved = ones[index] == dropped.kept_copies
    return replace(
        dropped,
        ordinals=np.concatenate([dropped.ordinals, ones]),
        kept_copies=np.concatenate([np.where(moved, others[index], dropped.kept_copies), others]),
        exact=np.concatenate([dropped.exact & ~moved, np.zeros(len(because), dtype=np.bool_)]),
        similarity=np.concatenate([np.where(moved, np.nan, dropped.similarity), similarities], dtype=np.float32),
    )


def _candidates(inputs: CorpusInputs, dropped: DropDecisions, settings: DedupSettings) -> np.ndarray:
    """Return (later, earlier) positions of pairs of a document of train and one of val that may be near, (2, n) int64, sorted."""
    stays = np.ones(dropped.documents, dtype=bool)
    stays[dropped.ordinals] = False
    is_val = inputs.splits == SPLITS.index("val")
    chosen = np.flatnonzero(is_val & stays)
    found = [np.empty((2, 0), dtype=np.int64)]
    if (is_train := stays & ~is_val).any():
        for first in range(0, len(chosen), _VAL_AT_ONCE):
            found += _pairs(inputs, chosen[first : first + _VAL_AT_ONCE], is_train, settings)
    pairs = np.concatenate(found, axis=1)
    return pairs[:, np.lexsort(pairs[::-1])]


def _pairs(inputs: CorpusInputs, chosen: np.ndarray, is_train: np.ndarray, settings: DedupSettings) -> Iterator[np.ndarray]:
    """Yield (later, earlier) positions of pairs of a document of train and one of val that may be near, (2, n) int64.

    Args:
        inputs: The corpora.
        chosen: The positions of the documents of val.
        is_train: For each position, whether its document is one of train that stays.
        settings: The table [dedup].
    """
    bands, rows = bands_for_recall(settings.threshold, settings.num_perm)
    least = settings.threshold - _SIGMAS * (settings.threshold * (1 - settings.threshold) / settings.num_perm) ** 0.5
    slots = inputs.slots(chosen)
    hashes = band_hashes(slots, bands, rows)
    size = 1 << min(max((16 * len(chosen)).bit_length(), 10), 22)
    known = np.zeros((bands, size), dtype=bool)  # whether val may have a hash, by its lowest bits; most look-ups end here
    known[np.arange(bands), hashes & np.uint64(size - 1)] = True
    indexes = [HashIndex(hashes[:, band], np.arange(len(chosen))) for band in range(bands)]
    del hashes
    start = 0
    for block in (block for each in inputs.all for block in each.signatures()):
        positions = np.arange(start, start + len(block))
        start += len(block)
        own = band_hashes(block.slots, bands, rows)
        may_match = known[np.arange(bands), own & np.uint64(size - 1)] & is_train[positions, None] & (own != NO_BUCKET)
        pairs = []  # each is (index of train in the block) * len(chosen) + (index of val in `chosen`)
        for band in np.flatnonzero(may_match.any(axis=0)).tolist():
            train = np.flatnonzero(may_match[:, band])
            indices, of_val = indexes[band].find(own[train, band], most=_MAX_COMPARED)
            pairs.append(train[indices] * len(chosen) + of_val)
        ones, others = np.divmod(np.unique(np.concatenate([np.empty(0, np.int64), *pairs])), len(chosen))
        near = estimated_jaccard(block.slots[ones], slots[others]) >= least
        ours, theirs = positions[ones[near]], chosen[others[near]]
        yield np.stack([np.maximum(ours, theirs), np.minimum(ours, theirs)])
