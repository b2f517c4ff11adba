"""Metadata of parts and of the steps of a search for duplicates: a few lines each, because there may be thousands of them."""

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.base.wording import file_size, format_count
from niels_cache_assets.defs.metadata.builds import Metadata, engines_entry, recorded_at, state_of
from niels_cache_assets.defs.metadata.entries import without_empty
from niels_cache_assets.facts.contents import total_bytes
from niels_cache_runtime.format.layout import SPLITS


def part_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of a part."""
    meta = outcome.meta
    tokens = sum(meta[f"{split}_tokens"] for split in SPLITS)
    return without_empty(
        {
            **state_of(outcome),
            "contents": f"{file_size(total_bytes(meta['files']))}: {format_count(tokens, 'token')}",
            "tokens": tokens,
            **engines_entry(outcome),
            "short": meta["part"]["short"] or None,
            "dropped": ", ".join(f"{reason} {count:,}" for reason, count in sorted(meta["dropped"].items())),
            **recorded_at(outcome),
        }
    )


def corpus_part_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of a part of a corpus."""
    meta = outcome.meta
    documents = meta["documents"]
    contents = f"{file_size(meta['bytes']['after'])}: {format_count(documents['kept'], 'document')} of {documents['read']:,}"
    return without_empty(
        {
            **state_of(outcome),
            "contents": contents,
            "documents": documents["kept"],
            "dropped": ", ".join(f"{reason} {count:,}" for reason, count in sorted(meta["dropped"].items())) or None,
            **recorded_at(outcome),
        }
    )


def search_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of the hashes or of a range."""
    searched = format_count(outcome.meta["documents"]["searched"], "document")
    return {
        **state_of(outcome),
        "contents": f"{file_size(total_bytes(outcome.meta['files']))}: {searched} in {outcome.meta['ranges']} ranges",
        **recorded_at(outcome),
    }
