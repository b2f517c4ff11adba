"""Metadata of corpora, duplicates and reports for the UI: numbers to plot, tables, pictures.

The values come from meta.json and report.json.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.corpus_report import cuts_table, duplicates_matrix, estimated_tokens, kept_per_split, reasons
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.wording import SHORT_SHA256, abbreviate, file_size, format_count, format_share
from niels_cache_assets.corpus.layout import REPORT_NAME
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.defs.metadata.builds import STATE, Metadata, files_list, recorded_at, state_of
from niels_cache_assets.defs.metadata.entries import command_entry, images, json_entry, table
from niels_cache_assets.facts.contents import total_bytes
from niels_cache_assets.sources.excluding import EXCLUDED
from niels_cache_runtime.format.layout import SPLITS


def documents_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of corpus/documents.

    Raises:
        NielsCacheError: If a file cannot be read.
    """
    meta, root = outcome.meta, outcome.directory.parent.parent
    documents, size = meta["documents"], meta["bytes"]["after"]
    counts = [
        f"{file_size(size)}: {format_count(documents['kept'], 'document')} of {documents['read']:,}",
        format_count(meta["words"], "word"),
    ]
    tokens = estimated_tokens(meta["characters"]["after"])
    keys = ("prepare", "steps", "cleaning", "languages", "source", "facts", "dataset_revision", "fingerprint")
    state = state_of(outcome)
    if outcome.state == "built":
        characters = meta["characters"]["before"] - outcome.resumed  # only characters of this run, because `seconds` covers only this run
        state[STATE] += f", {abbreviate(characters / max(outcome.seconds, 1e-6))} characters per second"
    return {
        "samples": command_entry("sample", outcome.name, "--stage", "corpus", root=root),
        "rejected_examples": command_entry("clean", "--dropped", outcome.name, root=root) if sum(meta["dropped"].values()) else None,
        **state,
        "contents": f"{', '.join(counts)}, about {abbreviate(tokens)} tokens",
        "documents": documents["kept"],
        "bytes": size,
        "reasons": reasons_table(reasons(meta, meta["dropped"])),
        "made_from": json_entry({key: meta[key] for key in keys if key in meta}),
        "files": files_list(meta["files"]),
        "content_sha256": meta["content_sha256"],
        **recorded_at(outcome),
    }


def corpus_part_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of a part of a corpus."""
    meta = outcome.meta
    documents = meta["documents"]
    contents = f"{file_size(meta['bytes']['after'])}: {format_count(documents['kept'], 'document')} of {documents['read']:,}"
    return {
        **state_of(outcome),
        "contents": contents,
        "documents": documents["kept"],
        "dropped": ", ".join(f"{reason} {count:,}" for reason, count in sorted(meta["dropped"].items())) or None,
        **recorded_at(outcome),
    }


def search_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of the hashes or of a range."""
    searched = format_count(outcome.meta["documents"]["searched"], "document")
    return {
        **state_of(outcome),
        "contents": f"{file_size(total_bytes(outcome.meta['files']))}: {searched} in {outcome.meta['ranges']} ranges",
        **recorded_at(outcome),
    }


def duplicates_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of corpus/duplicates."""
    meta = outcome.meta
    if outcome.state == "disabled":
        return {**state_of(outcome), "note": 'no data set has prepare = [..., "dedup"]'}
    found = meta["datasets"]
    rows = [
        {
            "data_set": name,
            **{key: counts[key] for key in ("documents", "exact", "near")},
            "drop_sha256": counts["drop_sha256"][:SHORT_SHA256],
        }
        for name, counts in found.items()
    ]
    total = {key: sum(counts[key] for counts in found.values()) for key in ("documents", "exact", "near")}
    dropped = total["exact"] + total["near"]
    return {
        **state_of(outcome),
        "contents": f"{format_share(dropped, total['documents'])} of {format_count(total['documents'], 'document')} are duplicates: "
        f"{total['exact']:,} exact, {total['near']:,} near",
        "exact_duplicates": total["exact"],
        "near_duplicates": total["near"],
        "data_sets": table(rows),
        "because_of": matrix_table(duplicates_matrix(found)),
        "settings": json_entry({**meta["settings"], "bands": meta["bands"], "rows": meta["rows"]}),
        "files": files_list(meta["files"]),
        "content_sha256": meta["content_sha256"],
        **recorded_at(outcome),
    }


def cuts_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of corpus/lines and corpus/spans."""
    meta = outcome.meta
    if outcome.state == "disabled":
        return {**state_of(outcome), "note": f'no data set has prepare = [..., "{outcome.name}"]'}
    rows = cuts_table(meta["datasets"])
    cuts, size = (sum(row[key] for row in rows) for key in ("cuts", "bytes"))
    return {
        **state_of(outcome),
        "contents": f"{format_count(cuts, 'cut')}, {file_size(size)} of text",
        "cuts": cuts,
        "cut_bytes": size,
        "data_sets": table(rows),
        "because_of": table([{"data_set": name, **pair} for name, counts in meta["datasets"].items() for pair in counts["pairs"]]),
        "settings": json_entry(meta["settings"]),
        "files": files_list(meta["files"]),
        "content_sha256": meta["content_sha256"],
        **recorded_at(outcome),
    }


def suffixes_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of index/suffixes."""
    files, tokens = outcome.meta["files"], sum(outcome.meta[f"{split}_tokens"] for split in SPLITS)
    return {
        **state_of(outcome),
        "contents": f"{file_size(total_bytes(files))} for {format_count(tokens, 'token')}",
        "bytes": total_bytes(files),
        "files": files_list(files),
        "content_sha256": outcome.meta["content_sha256"],
        **recorded_at(outcome),
    }


def kept_metadata(prepared: PreparedCorpus) -> Metadata:
    """Return the metadata of corpus/kept."""
    splits = {split: count for split, count in kept_per_split(prepared).items() if split != "unknown" or count}
    shares = ", ".join(f"{count:,} of {split}" for split, count in splits.items())
    return {
        "contents": f"{format_count(prepared.kept, 'document')} ({shares}); {format_count(int(prepared.is_dropped.sum()), 'duplicate')} "
        f"and {sum(prepared.dropped.values()):,} dropped in all",
        "documents": prepared.kept,
        "content_sha256": prepared.meta["content_sha256"],
        "drop_sha256": prepared.drop_sha256,
        "cuts_sha256": json_entry(prepared.identity().get("cuts", {})),
        "dagster/uri": prepared.directory.absolute().as_uri(),
    }


def report_metadata(outcome: Outcome, *, draw: bool) -> Metadata:
    """Return the metadata of corpus/report: the tables of report.json, with plots if `draw` is set."""
    report = outcome.meta
    kept, given = report["documents"]["kept"], report["documents"]["given"]
    funnel = [{**stage, "text": file_size(stage["bytes"])} for stage in report["funnel"]]
    contents = [f"{format_share(kept, given)} of {format_count(given, 'document')} are kept"]
    if report["language_share"] is not None:
        contents.append(f"{format_share(report['language_share'])} in a wanted language")
    if report["duplicates"]:
        found = report["duplicates"]
        contents.append(f"{format_count(found['exact'], 'exact duplicate')}, {format_count(found['near'], 'near duplicate')}")
    return {
        "plots": dg.MetadataValue.md(images(load_beside("pages", "pictures").corpus_pictures(report), outcome.name)) if draw else None,
        **state_of(outcome),
        "contents": "; ".join(contents),
        "documents": kept,
        "funnel_table": table(funnel, stage="string", documents="int", text="string", estimated_tokens="int"),
        "reasons_table": reasons_table(report["reasons"]),
        "duplicates_matrix": matrix_table(report["duplicates"]["matrix"]) if report["duplicates"] else None,
        "masked_table": table(_rows("kind", "places", report.get("masked", {}).get("places", {}))),
        "excluded_table": table(_rows("id", "documents", report.get(EXCLUDED, {}))),
        "report": dg.MetadataValue.path(str(outcome.directory / REPORT_NAME)),
        "dagster/uri": outcome.directory.absolute().as_uri(),
    }


def _rows(name: str, count: str, counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return counts as rows of a table with these two columns, sorted by name."""
    return [{name: each, count: number} for each, number in sorted(counts.items())]


def reasons_table(reasons: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return `reasons` of report.json as a table, with shares in percent."""
    rows = [{**row, "share": format_share(row["share"])} for row in reasons]
    return table(rows, reason="string", stage="string", documents="int", share="string")


def matrix_table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return the rows of `duplicates_matrix` as a table, most documents first."""
    shown = [
        {
            "dropped": f"{row['data_set']} {row['split']}",
            "because_of": f"{row['because_of']} {row['because_split']}",
            "exact": row["exact"],
            "near": row["near"],
        }
        for row in sorted(rows, key=lambda row: -(row["exact"] + row["near"]))
    ]
    return table(shown)
