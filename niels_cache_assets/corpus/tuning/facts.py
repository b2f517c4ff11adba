"""The facts that help to choose the limits of [cleaning] and the threshold of [dedup], as plain data for a page or a program.

The measures come from measures.json of the corpus, and the similarities from its signatures. A few row groups of text are read, for the
pairs that are shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.duplicates import Duplicates
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.identity import require_prepared
from niels_cache_assets.corpus.layout import MEASURES_NAME
from niels_cache_assets.corpus.prepared import document_files, document_rows
from niels_cache_assets.corpus.report import documents_given
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta

if TYPE_CHECKING:
    from niels_cache_assets.cleaning.measures import Measures, Rule
    from niels_cache_assets.corpus.tuning.similarity import Pair

PAIRS = 20  # on each side of the threshold
NOT_MEASURED = "not measured: this corpus was made by an earlier release; prepare it again with --force"
EXCERPT_CHARACTERS = 700
_CHANGED_STEPS = 10  # on each side of a limit
_LEAST_SHOWN = 0.3  # similarity

Tuning = dict[str, Any]


def tuning(registry: Registry, name: str, *, root: Path, seed: int) -> Tuning:
    """Return the facts about a prepared data set.

    `documents`, `kept`: the numbers of documents before and after cleaning. `cleaning`: None if the data set is not cleaned, otherwise
    `note` (why nothing was measured, or None), `measured` and `counted` (how many documents were measured, and how many they count for),
    `languages`, and `rules` (see `_rule`). `duplicates`: None without "dedup", otherwise the counts of the search and `similarity`.

    Raises NielsCacheError if the corpus or its drop list is missing or out of date.
    """
    source = require_prepared(registry, name)
    corpus = Corpus(registry=registry, root=root, name=name)
    meta = corpus.current()
    return {
        "name": name,
        "documents": documents_given(meta),
        "kept": meta["documents"]["kept"],
        "dropped": dict(meta["dropped"]),
        "cleaning": _cleaning(corpus.directory, meta) if "clean" in source.prepare else None,
        "duplicates": _duplicates(registry, name, meta, root=root, seed=seed) if "dedup" in source.prepare else None,
    }


def read_measures(directory: Path) -> Measures | None:
    """Return what the filters measured for a corpus, or None for a corpus without measures. Raises NielsCacheError for a damaged file."""
    from niels_cache_assets.cleaning.measures import Measures

    path = directory / MEASURES_NAME
    try:
        return Measures.from_state(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NielsCacheError(f"{path}: cannot be read ({error}); prepare this data set again with force") from error


def measured_limits(directory: Path) -> list[dict[str, Any]]:
    """Return the facts about each limit of a corpus (see `_rule`), without its documents. Empty if nothing was measured.

    Raises NielsCacheError for a damaged file.
    """
    found = read_measures(directory)
    rules = [] if found is None else _rules(found)
    return [{key: value for key, value in rule.items() if key not in ("below", "above")} for rule in rules]


def _rules(found: Measures) -> list[dict[str, Any]]:
    from niels_cache_assets.cleaning.measures import RULES

    return [_rule(rule, found) for rule in RULES if rule.key in found.limits]


def _cleaning(directory: Path, meta: Meta) -> dict[str, Any]:
    found = read_measures(directory)
    if found is None:
        return {"note": NOT_MEASURED, "measured": 0, "counted": 0, "languages": dict(meta["languages"]), "rules": []}
    return {
        "note": None,
        "measured": found.measured,
        "counted": found.documents,
        "languages": dict(found.languages.most_common()),
        "rules": _rules(found),
    }


def _rule(rule: Rule, found: Measures) -> dict[str, Any]:
    """Return the facts about one limit.

    `bins`: `from`, `to` (None: open), whether the rule `drops` the documents of the bin, the number of documents that no other rule drops
    (`alone`), and of all others (`anyway`). `changes`: other limits, and how many `documents` more (or fewer, if negative) would stay.
    `below`, `above`: documents on each side of the limit that no other rule drops, the nearest first.
    """
    from niels_cache_assets.cleaning.measures import STEPS

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


def _duplicates(registry: Registry, name: str, corpus: Meta, *, root: Path, seed: int) -> dict[str, Any]:
    from niels_cache_assets.corpus.tuning.similarity import BINS, similarities

    lists = Duplicates(registry=registry, root=root)
    meta = lists.current_of(name, corpus=corpus, source=registry.pretrain[name], seed=registry.build.seed)
    corpora = lists.wanted.corpora
    found = similarities(registry, name, root=root, corpora=corpora, seed=seed, pairs=PAIRS)
    counts, threshold = found.counts.tolist(), registry.dedup.threshold
    first = int(_LEAST_SHOWN * BINS)
    lost = np.cumsum(found.counts[::-1])[::-1].tolist()
    texts = _texts(root, name, [*found.above, *found.below], corpora)
    return {
        "threshold": threshold,
        "verify": registry.dedup.verify,
        "exact": meta["datasets"][name]["exact"],
        "near": meta["datasets"][name]["near"],
        "documents": found.documents,
        "compared": found.compared,
        "least": round(found.least, 3),
        "histogram": [{"from": bin / BINS, "to": (bin + 1) / BINS, "documents": counts[bin]} for bin in range(first, BINS)],
        "dissimilar": sum(counts[:first]),
        "lost": [{"threshold": bin / BINS, "documents": lost[bin]} for bin in range(first, BINS)],
        "above": [_pair(name, pair, texts) for pair in found.above],
        "below": [_pair(name, pair, texts) for pair in found.below],
    }


def _pair(name: str, pair: Pair, texts: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, Any]:
    mine, other = texts[name, pair.ordinal], texts[pair.because_dataset, pair.because_ordinal]
    return {
        "similarity": round(pair.similarity, 3),
        "is_dropped": pair.is_dropped,
        "document": {"dataset": name, "ordinal": pair.ordinal, **mine},
        "earlier": {"dataset": pair.because_dataset, "ordinal": pair.because_ordinal, **other},
    }


def _texts(root: Path, name: str, pairs: Sequence[Pair], corpora: Mapping[str, Meta]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the origin and the beginning of the text of both documents of every pair, by data set and ordinal."""
    from niels_cache_assets.corpus.layout import corpus_dir

    wanted: dict[str, set[int]] = {}
    for pair in pairs:
        wanted.setdefault(name, set()).add(pair.ordinal)
        wanted.setdefault(pair.because_dataset, set()).add(pair.because_ordinal)
    texts: dict[tuple[str, int], dict[str, Any]] = {}
    for dataset, chosen in wanted.items():
        ordinals, files = np.array(sorted(chosen), dtype=np.int64), document_files(corpus_dir(root, dataset), corpora[dataset])
        for inside, rows in document_rows(files, ordinals, ["source_id", "file", "row", "title", "text"]):
            for ordinal, row in zip(inside.tolist(), rows.to_pylist(), strict=True):
                text = row.pop("text")
                texts[dataset, ordinal] = {**row, "characters": len(text), "excerpt": text[:EXCERPT_CHARACTERS]}
    return texts
