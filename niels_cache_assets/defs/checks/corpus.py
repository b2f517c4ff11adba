"""Checks of a corpus: no document at all is an error that blocks, and implausible reasons of dropped documents are a warning.

The checks read only meta.json, and no rejected document. The limits are max_reason_share and min_language_share of [cleaning].
"""

from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.artifacts.corpus_report import language_share, reasons
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.defs.keys import corpus_partitions, names_of
from niels_cache_assets.defs.metadata.corpora import reasons_table
from niels_cache_assets.defs.metadata.entries import without_empty
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.project.registry import Registry

REASONS_PLAUSIBLE = "no_reason_takes_too_much"
LANGUAGE_PLAUSIBLE = "language_is_plausible"
NOT_EMPTY = "corpus_is_not_empty"

_WARN, _ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


def corpus_checks(registry: Registry) -> list[dg.AssetChecksDefinition]:
    """Return the checks, or nothing if no data set is prepared."""
    if not registry.prepared():
        return []
    return [_plausible(registry), _not_empty(registry)]


def _plausible(registry: Registry) -> dg.AssetChecksDefinition:
    names, each = names_of(registry), corpus_partitions(registry)
    descriptions = {
        REASONS_PLAUSIBLE: "No reason drops a larger share of the documents than max_reason_share of [cleaning].",
        LANGUAGE_PLAUSIBLE: "Of the documents with a detected language, at least min_language_share of [cleaning] are in `languages`.",
    }
    specs = [dg.AssetCheckSpec(name, asset=names.documents, description=text, partitions_def=each) for name, text in descriptions.items()]

    @dg.multi_asset_check(name=names.name("check_corpus"), specs=specs, can_subset=True, required_resource_keys=names.resources)
    def check_corpus(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        name = context.partition_key
        with readable_failures():
            meta = graph(registry, root_of(context, names)).corpus(name).current()
        settings = registry.cleaning_of(name)
        rows = reasons(meta, meta["dropped"])
        high = [row for row in rows if row["share"] > settings.max_reason_share]
        share = language_share(meta["languages"], settings.languages)
        low = share is not None and share < settings.min_language_share
        results = {
            REASONS_PLAUSIBLE: dg.AssetCheckResult(
                check_name=REASONS_PLAUSIBLE,
                passed=not high,
                severity=_WARN,
                description="; ".join(f"{row['reason']} drops {row['share']:.1%} of the documents" for row in high) or None,
                metadata=without_empty({"reasons": reasons_table(rows), "max_reason_share": settings.max_reason_share}),
            ),
            LANGUAGE_PLAUSIBLE: dg.AssetCheckResult(
                check_name=LANGUAGE_PLAUSIBLE,
                passed=not low,
                severity=_WARN,
                description=f"only {share:.1%} of the documents are in {', '.join(settings.languages)}" if low else None,
                metadata=without_empty(
                    {
                        "languages": dg.MetadataValue.json(meta["languages"]),
                        "min_language_share": settings.min_language_share,
                        "language_share": share,
                    }
                ),
            ),
        }
        for key in sorted(context.selected_asset_check_keys):
            yield results[key.name]

    return check_corpus


def _not_empty(registry: Registry) -> dg.AssetChecksDefinition:
    names = names_of(registry)

    @dg.asset_check(
        asset=names.kept,
        name=NOT_EMPTY,
        blocking=True,
        description="Documents are left after cleaning and removal of duplicates.",
        partitions_def=corpus_partitions(registry),
        required_resource_keys=names.resources,
    )
    def corpus_is_not_empty(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with readable_failures():
            prepared = open_prepared(registry, context.partition_key, root=root_of(context, names))
        dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(prepared.dropped.items()))
        return dg.AssetCheckResult(
            passed=prepared.kept > 0,
            severity=_ERROR,
            description=None if prepared.kept else f"no document is left (dropped: {dropped})",
            metadata={"documents": prepared.kept},
        )

    return corpus_is_not_empty
