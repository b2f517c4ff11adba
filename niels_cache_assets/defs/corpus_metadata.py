"""What the UI shows of corpora, duplicates and reports: numbers to plot, tables, examples of what was rejected, pictures.

From meta.json and report.json, but for the examples: a small read of rejected.parquet, and of the first document.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.corpus.duplicates import DuplicatesOutcome
from niels_cache_assets.corpus.layout import REJECTED_NAME, REPORT_NAME
from niels_cache_assets.corpus.prepare import CorpusOutcome
from niels_cache_assets.corpus.reading import PreparedCorpus, document_files, open_documents
from niels_cache_assets.corpus.report import ReportOutcome, estimated_tokens, kept_per_split, plot_names, reasons
from niels_cache_assets.defs.excerpt import fenced
from niels_cache_assets.defs.metadata import Metadata, files_table, replaced_metadata, state_of
from niels_cache_assets.defs.pictures import pictures
from niels_cache_assets.defs.tables import table

EXAMPLES_PER_REASON = 5
EXCERPT_CHARACTERS = 200
FIRST_DOCUMENT_CHARACTERS = 1000


def documents_metadata(outcome: CorpusOutcome) -> Metadata:
    """Of corpus/documents. Raises NielsCacheError for files that cannot be read."""
    meta = outcome.meta
    metadata: Metadata = {
        **state_of(outcome),
        "dagster/uri": outcome.directory.absolute().as_uri(),
        "dagster/row_count": meta["documents"]["kept"],
        "documents_read": meta["documents"]["read"],
        "documents": meta["documents"]["kept"],
        "characters": meta["characters"]["after"],
        "bytes": meta["bytes"]["after"],
        "words": meta["words"],
        "estimated_tokens": estimated_tokens(meta["characters"]["after"]),
        "dropped": sum(meta["dropped"].values()),
        "dropped_by_reason": reasons_table(reasons(meta, meta["dropped"])),
        "rejected_examples": _rejected_examples(outcome.directory / REJECTED_NAME),
        "languages": dg.MetadataValue.json(meta["languages"]),
        "prepare": ", ".join(meta["prepare"]),
        "cleaning": dg.MetadataValue.json(meta["cleaning"]),
        "source": dg.MetadataValue.json(meta["source"]),
        "facts": dg.MetadataValue.json(meta["facts"]),
        **replaced_metadata(meta["facts"]),
        "dataset_revision": meta["dataset_revision"],
        "content_sha256": meta["content_sha256"],
        "meta_sha256": meta["meta_sha256"],
        "fingerprint": meta["fingerprint"],
        "files": files_table(meta["files"]),
    }
    if outcome.state == "built":
        characters = meta["characters"]["before"] - outcome.resumed_characters  # of this run, as its seconds are
        metadata["characters_per_second"] = round(characters / max(outcome.seconds, 1e-6))
    return metadata | _first_document(outcome)


def duplicates_metadata(outcome: DuplicatesOutcome) -> Metadata:
    """Of corpus/duplicates."""
    meta = outcome.meta
    if outcome.state == "disabled":
        return {**state_of(outcome), "note": 'no data set has prepare = [..., "dedup"]'}
    found = meta["datasets"]
    rows = [
        {
            "data_set": name,
            "documents": counts["documents"],
            "exact": counts["exact"],
            "near": counts["near"],
            "drop_sha256": counts["drop_sha256"],
        }
        for name, counts in found.items()
    ]
    pairs = [{"data_set": name, **pair} for name, counts in found.items() for pair in counts["pairs"]]
    return {
        **state_of(outcome),
        "dagster/uri": outcome.directory.absolute().as_uri(),
        "documents": sum(counts["documents"] for counts in found.values()),
        "exact": sum(counts["exact"] for counts in found.values()),
        "near": sum(counts["near"] for counts in found.values()),
        "data_sets": table(rows, data_set="string", documents="int", exact="int", near="int", drop_sha256="string"),
        "because_of": table(
            sorted(pairs, key=lambda pair: -pair["documents"]),
            data_set="string", split="string", because_dataset="string", because_split="string", kind="string", documents="int",
        ),
        "settings": dg.MetadataValue.json(meta["settings"]),
        "bands": meta["bands"],
        "rows": meta["rows"],
        "content_sha256": meta["content_sha256"],
        "meta_sha256": meta["meta_sha256"],
        "files": files_table(meta["files"]),
    }  # fmt: skip


def kept_metadata(prepared: PreparedCorpus) -> Metadata:
    """Of corpus/kept."""
    splits = kept_per_split(prepared)
    return {
        "dagster/uri": prepared.directory.absolute().as_uri(),
        "dagster/row_count": prepared.kept,
        "documents": prepared.kept,
        **{f"{split}_documents": count for split, count in splits.items() if split != "unknown" or count},
        "duplicates": int(prepared.gone.sum()),
        "dropped": sum(prepared.dropped.values()),
        "content_sha256": prepared.meta["content_sha256"],
        "drop_sha256": prepared.drop_sha256,
    }


def report_metadata(outcome: ReportOutcome) -> Metadata:
    """Of corpus/report: the tables of report.json and its plots. Raises OSError for a plot that was removed meanwhile."""
    report = outcome.report
    funnel = [{key: stage[key] for key in ("stage", "documents", "bytes", "estimated_tokens")} for stage in report["funnel"]]
    metadata: Metadata = {
        **state_of(outcome),
        "dagster/uri": outcome.directory.absolute().as_uri(),
        "report": dg.MetadataValue.path(str(outcome.directory / REPORT_NAME)),
        "documents": report["documents"]["kept"],
        "kept_share": round(report["documents"]["kept"] / report["documents"]["given"], 4),
        "estimated_tokens": report["funnel"][-1]["estimated_tokens"],
        "plots": pictures({Path(name).stem: (outcome.directory / name).read_bytes() for name in plot_names(report)}),
        "funnel_table": table(funnel, stage="string", documents="int", bytes="int", estimated_tokens="int"),
        "reasons_table": reasons_table(report["reasons"]),
        **replaced_metadata(report),
        "lengths_table": table(report["lengths"], **{"from": "int", "below": "int", "before": "int", "after": "int"}),
    }
    if report["language_share"] is not None:
        metadata["language_share"] = report["language_share"]
    if report["duplicates"]:
        found = report["duplicates"]
        sizes = [
            {"size": int(size), "clusters": count} for size, count in sorted(found["cluster_sizes"].items(), key=lambda item: int(item[0]))
        ]
        curve = [{"similarity": similarity, "found": share} for similarity, share in found["s_curve"][::5]]
        metadata |= {
            "exact_duplicates": found["exact"],
            "near_duplicates": found["near"],
            "clusters_table": table(sizes, size="int", clusters="int"),
            "s_curve_table": table(curve, similarity="float", found="float"),
        }
    return metadata


def reasons_table(reasons: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """`reasons` as report.json has them."""
    return table(reasons, reason="string", stage="string", documents="int", share="float")


def _rejected_examples(path: Path) -> dg.TableMetadataValue:
    with open_documents(path) as parquet:
        rows = parquet.read().to_pylist()
    shown = [row for _, same in groupby(rows, key=lambda row: row["reason"]) for row in list(same)[:EXAMPLES_PER_REASON]]
    return table([_example(row) for row in shown], reason="string", title="string", measured="string", place="string", excerpt="string")


def _example(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "reason": row["reason"],
        "title": row["title"] or "",
        "measured": "" if row["value"] is None else f"{row['value']:.4g}",
        "place": f"{row['file']}:{row['row']}",
        "excerpt": " ".join(row["excerpt"][:EXCERPT_CHARACTERS].split()),
    }


def _first_document(outcome: CorpusOutcome) -> Metadata:
    with open_documents(document_files(outcome.directory, outcome.meta)[0]) as parquet:
        text: str = next(parquet.iter_batches(batch_size=1, columns=["text"]))["text"][0].as_py()  # a corpus is never empty
    note = "" if len(text) <= FIRST_DOCUMENT_CHARACTERS else f"the first {FIRST_DOCUMENT_CHARACTERS:,} of {len(text):,} characters:\n\n"
    return {"first_document": dg.MetadataValue.md(note + fenced(text[:FIRST_DOCUMENT_CHARACTERS]))}
