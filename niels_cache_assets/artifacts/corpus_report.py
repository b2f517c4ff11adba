"""The report of a prepared data set in numbers: stages, drop reasons, lengths and duplicates.

All numbers come from the meta.json of the corpus and of the drop lists. A report costs a few small reads, and reads no document.
Dagster's checks judge these numbers; this module does not.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import BuildJob, Identity, RootArtifact, WriteResult, corpus_keys
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.base.documents import NO_SPLIT
from niels_cache_assets.corpus.layout import REPORT_NAME, reports_dir
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.disk.identity import without_keys
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.excluding import EXCLUDED
from niels_cache_assets.sources.reading.encodings import NOT_TEXT, REPLACED
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS
from niels_cache_runtime.format.meta import Meta, read_meta

CODE_VERSION = "1"  # raise it by hand when a report changes for the same corpus
CHARACTERS_PER_TOKEN = 4  # for English and vocabularies of 16,000 to 50,000 pieces; the finished cache has the exact number of tokens

Report = dict[str, Any]


def corpus_report(registry: Registry, name: str, *, root: Path) -> Report:
    """Return the report of a prepared data set, as plain data.

    Returns:
        A dict with these keys, among others:

        * `funnel`: the numbers of documents, characters, bytes and estimated tokens after each stage.
        * `reasons`: the number of documents dropped for each reason, and their share of all documents of the source.
        * `lengths`: a histogram of documents by number of characters. A bin goes from `from` up to but not including `below`, which are
          powers of two.
        * `cuts`: for each step that cuts repeated text, the counts of this data set in its meta.json, if there are such steps.
        * `duplicates`: None without "dedup". Its `matrix` has the rows of `duplicates_matrix` that name this data set.
        * `replaced`, `not_text`: the bytes and documents that are not text, copied from `facts` of meta.json if it has them.
        * `excluded`: the number of documents that were left out for each id of `exclude`, if there are any.
        * `masked`: the counts of documents and places that were masked, if there are any.

    Raises:
        NielsCacheError: If the corpus or its drop list is missing or has other settings. The message names the artifact to materialize.
    """
    prepared = open_prepared(registry, name, root=root)
    meta, settings = prepared.meta, registry.cleaning_of(name)
    found, cuts = prepared.duplicates, {cut.step: cut.counts for cut in prepared.cuts}
    return {
        "kind": "corpus_report",
        "code_version": CODE_VERSION,
        "dataset_name": name,
        "dataset_revision": meta["dataset_revision"],
        "prepare": meta["prepare"],
        "content_sha256": meta["content_sha256"],
        "drop_sha256": prepared.drop_sha256,
        "documents": {"given": source_documents(meta), "kept": prepared.kept},
        "splits": kept_per_split(prepared),
        "funnel": funnel(meta, found["datasets"][name] if found else None, cuts),
        "reasons": reasons(meta, prepared.dropped),
        "lengths": _lengths(meta["lengths"]),
        "languages": dict(meta["languages"]),
        "language_share": language_share(meta["languages"], settings.languages),
        "duplicates": _duplicates(registry, found, name) if found else None,
        **({"cuts": cuts} if cuts else {}),
        **({"masked": {key: meta["masked"][key] for key in ("documents", "places")}} if "masked" in meta else {}),
        **{key: meta["facts"][key] for key in (REPLACED, NOT_TEXT, EXCLUDED) if key in meta["facts"]},
    }


def kept_per_split(prepared: PreparedCorpus) -> dict[str, int]:
    """Return the number of kept documents of each split. "unknown" counts documents whose split token budgets decide later."""
    counts = Counter(prepared.splits[~prepared.is_dropped].tolist())
    return {**{split: counts[index] for index, split in enumerate(SPLITS)}, "unknown": counts[NO_SPLIT]}


def source_documents(meta: Meta) -> int:
    """Return the number of documents of the source, including those that the source dropped."""
    return int(meta["documents"]["read"]) + sum(meta["dropped_by_source"].values())


def reasons(meta: Meta, dropped: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the number of documents dropped for each reason, and their share of all documents of the source; most frequent reason first.

    `stage` is the step that dropped the documents. If both the source and cleaning use a reason, its `stage` is the source.
    """
    total = source_documents(meta)
    by_source, by_cleaning = meta["dropped_by_source"], meta["dropped"]
    rows = [
        {
            "reason": reason,
            "stage": "source" if reason in by_source else "cleaning" if reason in by_cleaning else "duplicates",
            "documents": count,
            "share": round(count / total, 6),
        }
        for reason, count in dropped.items()
    ]
    return sorted(rows, key=lambda row: (-row["documents"], row["reason"]))


def language_share(languages: Mapping[str, int], accepted: Sequence[str]) -> float | None:
    """Return the share of documents in accepted languages, among those with a known language. Return None if no language is known."""
    detected = sum(languages.values())
    return round(sum(languages.get(code, 0) for code in accepted) / detected, 6) if detected else None


def estimated_tokens(characters: int) -> int:
    """Return the approximate number of tokens of an English text with this number of characters."""
    return round(characters / CHARACTERS_PER_TOKEN)


def funnel(meta: Meta, duplicates: Mapping[str, Any] | None, cuts: Mapping[str, Meta]) -> list[dict[str, Any]]:
    """Return the totals after each stage.

    Args:
        meta: The meta.json of the corpus.
        duplicates: The entry of this data set in the drop lists. None without "dedup".
        cuts: For each step that cuts repeated text, the entry of this data set in its meta.json.
    """
    stages = [
        ("read", meta["documents"]["read"], meta["characters"]["before"], meta["bytes"]["before"]),
        (
            "cleaned" if "clean" in meta["prepare"] else "checked",
            meta["documents"]["kept"],
            meta["characters"]["after"],
            meta["bytes"]["after"],
        ),
    ]
    if duplicates is not None:
        for kind in ("exact", "near"):
            _, documents, characters, size = stages[-1]
            lost = (duplicates[kind], duplicates["characters"][kind], duplicates["bytes"][kind])
            stages.append((f"without {kind} duplicates", documents - lost[0], characters - lost[1], size - lost[2]))
    for step, less in cuts.items():
        _, documents, characters, size = stages[-1]
        name = f"without repeated {step}"
        stages.append((name, documents - less["emptied"], characters - less["characters"], size - less["bytes"]))
    return [
        {"stage": stage, "documents": documents, "characters": characters, "bytes": size, "estimated_tokens": estimated_tokens(characters)}
        for stage, documents, characters, size in stages
    ]


def _lengths(lengths: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return the bins of a histogram, from the shortest to the longest document.

    Bin b holds documents with 2**(b-1) <= characters < 2**b. The first bin (b = 0) holds empty texts.
    """
    filled = [index for index, counts in enumerate(zip(lengths["before"], lengths["after"], strict=True)) if any(counts)]
    return [
        {"from": 2 ** (index - 1) if index else 0, "below": 2**index, "before": lengths["before"][index], "after": lengths["after"][index]}
        for index in range(min(filled, default=0), max(filled, default=-1) + 1)
    ]


def _duplicates(registry: Registry, found: Meta, name: str) -> dict[str, Any]:
    own = found["datasets"][name]
    return {
        "exact": own["exact"],
        "near": own["near"],
        "because_of": own["pairs"],
        "matrix": [row for row in duplicates_matrix(found["datasets"]) if name in (row["data_set"], row["because_of"])],
        "cluster_sizes": own["clusters"],
        "cluster_sizes_across": own["clusters_across"],
        "threshold": registry.dedup.threshold,
        "verify": registry.dedup.verify,
        "bands": found["bands"],
        "rows": found["rows"],
    }


def duplicates_matrix(datasets: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the number of duplicates for each pair of (data set, split), as rows.

    A row counts the documents of `data_set` and `split` that were dropped because of a document of `because_of` and `because_split`. Its
    counts are `exact` and `near`. Rows without duplicates are left out.

    Args:
        datasets: The entry of this name in the drop lists' meta.json.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, counts in datasets.items():
        for pair in counts["pairs"]:
            key = {"data_set": name, "split": pair["split"], "because_of": pair["because_dataset"], "because_split": pair["because_split"]}
            row = rows.setdefault(tuple(key.values()), {**key, "exact": 0, "near": 0})
            row[pair["kind"]] += pair["documents"]
    return list(rows.values())


def cuts_table(datasets: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the counts of cuts as rows, one for each data set.

    Args:
        datasets: The entry of this name in the meta.json of the cuts.
    """
    keys = ("compared", "cut_documents", "emptied", "characters", "bytes")
    return [
        {"data_set": name, **{key: counts[key] for key in keys}, "cuts": sum(counts["cuts"].values()), **counts["cuts"]}
        for name, counts in datasets.items()
    ]


@dataclass(frozen=True, kw_only=True)
class CorpusReport(RootArtifact):
    """The report of a data set with `prepare`.

    The identity of the report is its content, because making the report costs less than finding out whether a new report would differ.
    """

    name: str

    version = CODE_VERSION
    record = REPORT_NAME

    @property
    def key(self) -> str:
        return f"report/{self.name}"

    @property
    def directory(self) -> Path:
        return reports_dir(self.root, self.name)

    def inputs(self) -> Sequence[str]:
        return corpus_keys(self.registry, [self.name])

    def finished(self) -> Meta | None:
        try:
            return read_meta(self.record_path)
        except NielsCacheError:
            return None

    def identity(self, revision: str | None) -> Identity:
        return corpus_report(self.registry, self.name, root=self.root)

    def matches(self, meta: Meta, identity: Identity) -> bool:
        return without_keys(meta, "schema_version", "meta_sha256") == identity

    def owns(self, name: str) -> bool:
        return name == REPORT_NAME

    def write(self, work: BuildJob) -> WriteResult:
        return WriteResult(meta=work.identity)
