"""Named jobs: one per thing a person starts. Each materializes its assets and runs their checks."""

from typing import TYPE_CHECKING

import dagster as dg

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.assets.upstream import observe_revision
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.keys import (
    CACHE_REPORT,
    CORPUS_JOB,
    DOCUMENTS,
    DUPLICATES,
    DUPLICATES_JOB,
    FAMILY_JOBS,
    INDEX,
    INDEX_JOB,
    KEPT,
    META_KEYS,
    MIXTURE,
    OBSERVE_JOB,
    REPORT,
    REPORT_JOB,
    REPORTS_JOB,
    TOKENIZER,
    TOKENIZER_JOB,
    VERIFY_JOB,
    family_keys,
)
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.sources.errors import in_one_line, log_traceback
from niels_cache_assets.sources.net.network import briefly
from niels_cache_runtime.format.layout import FAMILIES, Family

if TYPE_CHECKING:  # what define_asset_job returns has no public name
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

_DESCRIPTIONS: dict[Family, str] = {
    "pretrain": "Build the pretrain cache of a data set (or of all: a backfill) and verify it.",
    "sft": "Build the SFT cache of a data set (or of all: a backfill) and verify it.",
}


def build_jobs(registry: Registry) -> "list[dg.JobDefinition | UnresolvedAssetJobDefinition]":
    tokenizer = dg.define_asset_job(
        TOKENIZER_JOB,
        selection=dg.AssetSelection.assets(TOKENIZER),
        description="Train or import the tokenizer and check it. Every cache below the same root is made with it.",
    )
    families = [
        dg.define_asset_job(
            FAMILY_JOBS[family], selection=dg.AssetSelection.assets(*family_keys(family)), description=_DESCRIPTIONS[family]
        )
        for family in FAMILIES
    ]
    verify = dg.define_asset_job(
        VERIFY_JOB,
        selection=dg.AssetSelection.checks(*(dg.AssetCheckKey(META_KEYS[family], IN_SYNC) for family in FAMILIES)),
        description="Read and verify every file of every cache, and compare each with the settings: the check caches_in_sync of both "
        "families.",
    )
    reports = dg.define_asset_job(
        REPORTS_JOB,
        selection=dg.AssetSelection.assets(MIXTURE, CACHE_REPORT),
        description="Write the reports over everything that is built, as build-all does at its end.",
    )
    return [tokenizer, *families, *_corpus_jobs(registry), *_index_jobs(registry), reports, verify, _observe_upstream(registry)]


def _corpus_jobs(registry: Registry) -> "list[UnresolvedAssetJobDefinition]":
    """What corpus/* is built with; none where no data set is prepared."""
    if not registry.prepared():
        return []
    jobs = {
        CORPUS_JOB: ([DOCUMENTS], "Clean and sign the documents of a data set (or of all: a backfill)."),
        DUPLICATES_JOB: ([DUPLICATES], "Find the duplicates over all data sets that have a corpus."),
        REPORT_JOB: ([KEPT, REPORT], "Say what stays of a data set's corpus, and draw its report."),
    }
    return [dg.define_asset_job(name, selection=dg.AssetSelection.assets(*keys), description=text) for name, (keys, text) in jobs.items()]


def _index_jobs(registry: Registry) -> "list[UnresolvedAssetJobDefinition]":
    if not registry.blend_keys():
        return []
    description = "Build the indices of a blend (or of all: a backfill) ahead of training."
    return [dg.define_asset_job(INDEX_JOB, selection=dg.AssetSelection.assets(INDEX), description=description)]


def _observe_upstream(registry: Registry) -> dg.JobDefinition:
    @dg.op(description="Record the revision that every data set's upstream has now.")
    def observe_revisions(context: dg.OpExecutionContext, cache_root: dg.ResourceParam[CacheRoot]) -> None:
        with briefly():  # a build asks for longer
            for name in (name for family in FAMILIES for name in registry.partition_keys(family)):
                try:
                    context.log_event(observe_revision(registry, name, root=cache_root.path))
                except Exception as error:  # of one source, whatever it is
                    context.log.warning(f"{name}: {in_one_line(error)}")
                    log_traceback(error, context.log.info)

    @dg.job(
        name=OBSERVE_JOB,
        description="Look at upstream of every data set; partitions whose revision or settings have changed show as unsynced.",
    )
    def observe_upstream() -> None:
        observe_revisions()

    return observe_upstream
