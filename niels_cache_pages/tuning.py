"""The facts that help to choose the limits of [cleaning] and the threshold of [dedup], as plain data for a page or a program.

The measures come from measures.json of the corpus, and the similarities from its signatures. No text is signed or cleaned again. A few row
groups of text are read, for the pairs that are shown.

The search for duplicates stores the pairs that it found, and no pair below its threshold. Here the signatures are compared with fewer rows
in a band, so that pairs of lower similarity meet, too. A document counts with its most similar earlier document, in the order of the search
(see artifacts/duplicates.py). Exact duplicates are left out, because no threshold changes them.

Up to MAX_COMPARED documents are compared. Of a larger data set, a seeded sample of that size counts for all documents. The signatures of
all data sets that come before are read once, in blocks. The memory is about 1.2 kB for each compared document, and 6 bytes for every
document of the data sets.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.artifacts.corpus_report import source_documents
from niels_cache_assets.artifacts.duplicates import Duplicates
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.cleaning.measures import STEPS, MeasureHistograms
from niels_cache_assets.corpus.identity import require_prepared
from niels_cache_assets.corpus.layout import MEASURES_NAME
from niels_cache_assets.corpus.order import CorpusInputs
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes, bands_for_recall
from niels_cache_assets.dedup.signatures import estimated_jaccard
from niels_cache_assets.inspection.corpora import documents_at, seeded_choice
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints, Uint32s, Uints

PAIRS = 20  # on each side of the threshold
EXCERPT_CHARACTERS = 700
MAX_COMPARED = 100_000
BELOW = 0.25  # pairs are searched down to the threshold minus this
BINS = 100
_MAX_BUCKET_PARTNERS = 8  # compared documents that a document meets in one bucket of a band
_PAIRS_AT_ONCE = 1 << 16
_CHANGED_STEPS = 10  # on each side of a limit
_MIN_SHOWN = 0.3  # similarity

Tuning = dict[str, Any]


def tuning(registry: Registry, name: str, *, root: Path) -> Tuning:
    """Return the facts about a prepared data set.

    Returns:
        A dict with these keys, among others:

        * `documents`, `kept`: the numbers of documents before and after cleaning.
        * `cleaning`: None if the data set is not cleaned. Otherwise `measured` and `counted` (how many documents were measured, and how
          many they count for), `languages`, and `rules` (see `_rule`).
        * `duplicates`: None without "dedup". Otherwise see `_duplicates`.

    Raises:
        NielsCacheError: If the corpus or its drop list is missing or out of date.
    """
    require_prepared(registry, name)
    prepared = open_prepared(registry, name, root=root)
    meta = prepared.meta
    return {
        "name": name,
        "documents": source_documents(meta),
        "kept": meta["documents"]["kept"],
        "dropped": dict(meta["dropped"]),
        "cleaning": _cleaning(prepared.directory) if "clean" in prepared.source.prepare else None,
        "duplicates": _duplicates(registry, prepared, prepared.drops, root=root) if prepared.drops else None,
    }


def read_measures(directory: Path) -> MeasureHistograms:
    """Return what the filters measured for a cleaned corpus.

    Raises:
        NielsCacheError: If the file is missing or damaged.
    """
    path = directory / MEASURES_NAME
    try:
        return MeasureHistograms.from_state(json.loads(path.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NielsCacheError(f"{path}: cannot be read ({error}); prepare this data set again with force") from error


def _cleaning(directory: Path) -> dict[str, Any]:
    found = read_measures(directory)
    rules = [_rule(rule, found) for rule in load_beside("cleaning", "filters").RULES if rule.key in found.limits]
    return {"measured": found.measured, "counted": found.documents, "languages": dict(found.languages.most_common()), "rules": rules}


def _rule(rule: Any, found: MeasureHistograms) -> dict[str, Any]:
    """Return the facts about one limit.

    Returns:
        A dict with these keys, among others:

        * `bins`: for each bin, `from`, `to` (None: open), whether the rule `drops` its documents, the number of documents that no other
          rule drops (`alone`), and of all others (`anyway`).
        * `changes`: other limits, and how many `documents` more (or fewer, if negative) would stay.
        * `below`, `above`: documents on each side of the limit that no other rule drops, the nearest first.
    """
    limit, counts = found.limits[rule.key], found.steps[rule.key]
    shift = 1 if limit.side == "above" else 0
    steps = sorted({*counts["alone"], *counts["anyway"], 0, shift})

    def edge(step: int) -> float:
        return round(limit.limit + (step - shift) * limit.step, 9)

    bins = [
        {
            "from": None if step == -STEPS else max(edge(step), 0.0),
            "to": None if step == STEPS else edge(step + 1),
            "drops": limit.is_dropped(step),
            "alone": counts["alone"][step],
            "anyway": counts["anyway"][step],
        }
        for step in range(steps[0], steps[-1] + 1)
    ]
    changes = []
    for change in range(-_CHANGED_STEPS, _CHANGED_STEPS + 1):
        other = round(limit.limit + change * limit.step, 9)
        if change == 0 or other < 0 or (rule.form == "share" and other > 1):
            continue
        between = range(shift, change + shift) if change > 0 else range(change + shift, shift)
        documents = sum(counts["alone"][step] for step in between)
        changes.append({"limit": other, "documents": documents if (change > 0) == (limit.side == "above") else -documents})
    return {
        "key": rule.key,
        "reason": rule.reason,
        "form": rule.form,
        "side": limit.side,
        "limit": limit.limit,
        "dropped_alone": sum(row["alone"] for row in bins if row["drops"]),
        "dropped_anyway": sum(row["anyway"] for row in bins if row["drops"]),
        "bins": bins,
        "changes": changes,
        "below": found.samples(rule.key, "below"),
        "above": found.samples(rule.key, "above"),
    }


def _duplicates(registry: Registry, prepared: PreparedCorpus, drops: Mapping[str, Any], *, root: Path) -> dict[str, Any]:
    """Return the counts of the search, and the similarity of each document to its most similar earlier document.

    Returns:
        A dict with these keys, among others:

        * `documents`: the number of documents, without exact duplicates.
        * `compared`: how many of them were compared; all counts are those of all documents.
        * `histogram`: the numbers of documents by similarity.
        * `lost`: the numbers of documents at or above each threshold.
        * `least`: pairs below this similarity are often missed.
        * `above`, `below`: pairs on both sides of the threshold, the nearest first.
    """
    name, corpora = prepared.name, Duplicates(registry, root).required.corpora
    inputs = CorpusInputs(registry, root, corpora)
    number = [each.name for each in inputs.all].index(name)
    own = inputs.all[number]
    ordinals, is_equal = prepared.drop_list
    is_exact = np.zeros(len(own.order), dtype=bool)
    is_exact[ordinals[is_equal]] = True
    positions = np.flatnonzero(~is_exact[own.order])  # in the order of the search
    documents = len(positions)
    positions = positions[seeded_choice(documents, MAX_COMPARED, registry.build.seed)]
    ordinals = own.order[positions]
    before = sum(len(each.order) for each in inputs.all[:number])
    slots = inputs.slots(positions + before)
    threshold = registry.dedup.threshold
    least = max(_MIN_SHOWN, threshold - BELOW)
    best, because = _most_similar(inputs, number, slots, positions + before, least)
    scaled = np.bincount(np.minimum((best * BINS).astype(np.int64), BINS - 1), minlength=BINS) * (documents / max(len(positions), 1))
    counts = np.rint(scaled).astype(np.int64).tolist()
    lost, first = np.cumsum(counts[::-1])[::-1].tolist(), int(_MIN_SHOWN * BINS)
    above, below = _nearest(best, threshold)
    chosen = np.concatenate([above, below])
    numbers, others = inputs.locate(because[chosen])
    earlier = [(inputs.all[corpus].name, other) for corpus, other in zip(numbers.tolist(), others.tolist(), strict=True)]
    later = [(name, ordinal) for ordinal in ordinals[chosen].tolist()]
    columns = ["source_id", "file", "row", "title", "text"]
    texts = {key: _excerpt(*key, **row) for key, row in documents_at(root, {*earlier, *later}, corpora, columns).items()}
    pairs = [
        {
            "similarity": round(similarity, 3),
            "is_dropped": bool(prepared.is_dropped[mine[1]]),
            "document": texts[mine],
            "earlier": texts[other],
        }
        for similarity, mine, other in zip(best[chosen].tolist(), later, earlier, strict=True)
    ]
    return {
        "threshold": threshold,
        "verify": registry.dedup.verify,
        "exact": drops["exact"],
        "near": drops["near"],
        "documents": documents,
        "compared": len(positions),
        "least": round(least, 3),
        "histogram": [{"from": bin / BINS, "to": (bin + 1) / BINS, "documents": counts[bin]} for bin in range(first, BINS)],
        "dissimilar": sum(counts[:first]),
        "lost": [{"threshold": bin / BINS, "documents": lost[bin]} for bin in range(first, BINS)],
        "above": pairs[: len(above)],
        "below": pairs[len(above) :],
    }


def _excerpt(dataset: str, ordinal: int, *, text: str, **origin: Any) -> dict[str, Any]:
    """Return the origin and the beginning of the text of a document."""
    return {"dataset": dataset, "ordinal": ordinal, **origin, "characters": len(text), "excerpt": text[:EXCERPT_CHARACTERS]}


def _nearest(best: NDArray[np.float64], threshold: float) -> tuple[Ints, Ints]:
    """Return the documents at or above the threshold, and those below it, the nearest first."""
    order = np.argsort(best, kind="stable")
    middle = int(np.searchsorted(best[order], threshold, side="left"))
    below = order[:middle][::-1]
    return order[middle : middle + PAIRS], below[best[below] > 0][:PAIRS]


def _most_similar(inputs: CorpusInputs, number: int, slots: Uint32s, positions: Ints, least: float) -> tuple[NDArray[np.float64], Ints]:
    """Return the similarity of each compared document to its most similar earlier document, and the position of that document.

    The similarity is 0 for a document that met none.

    Args:
        inputs: The corpora.
        number: The number of the corpus of the compared documents.
        slots: (n, num_perm), their signatures.
        positions: (n,) ascending, their positions in the order of all corpora.
        least: The similarity from which most pairs are found.
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
                for earlier, later in _pairs_sharing_band(keys, sorted_hashes, order, first, positions):
                    similarity = estimated_jaccard(block.slots[earlier], slots[later])
                    # The last of equal keys wins, so sort by similarity, and of equal ones the earliest document last.
                    ascending = np.lexsort((-earlier, similarity))
                    earlier, later, similarity = earlier[ascending], later[ascending], similarity[ascending]
                    is_better = similarity > best[later]
                    best[later[is_better]] = similarity[is_better]
                    because[later[is_better]] = earlier[is_better] + first
            first += len(block)
    return best, because


def _pairs_sharing_band(keys: Uints, sorted_hashes: Uints, order: Uint32s, first: int, positions: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield pairs (document of the block, compared document) that share a band, each pair once, the earlier one first."""
    found = []
    for band in range(keys.shape[1]):
        low = np.searchsorted(sorted_hashes[:, band], keys[:, band], side="left")
        size = np.searchsorted(sorted_hashes[:, band], keys[:, band], side="right") - low
        size[keys[:, band] == NO_BUCKET] = 0
        for step in range(_MAX_BUCKET_PARTNERS):
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
