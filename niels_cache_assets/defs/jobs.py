"""Named jobs, one for each task that a person starts. A job materializes its assets and runs their checks.

As examples, two jobs have nightly schedules that you can turn on or copy. The schedules are off by default.
"""

from collections.abc import Collection
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.defs.assets.upstream import observe_revision
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.home.found import remove_markers_of
from niels_cache_assets.defs.keys import DefinitionNames, names_of
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.errors import describe_error, log_traceback
from niels_cache_assets.sources.net.retries import retry_at_most
from niels_cache_runtime.format.layout import FAMILIES

_NIGHTLY_HOUR = 3  # in UTC
_NIGHTLY = {
    "nightly_upstream": ("observe_upstream", 0, "Observe upstream of every data set, so that changed ones show as unsynced."),
    "nightly_verification": ("verify_caches", 30, "Read and verify every file of every cache, and compare it with the settings."),
}


def _jobs(names: DefinitionNames) -> dict[str, tuple[list[dg.AssetKey], str]]:
    """Return the assets and the description of each job, by its name without a prefix."""
    return {
        "build_tokenizer": ([names.tokenizer], "Train or import the tokenizer and check it. Every cache in the same root uses it."),
        "build_pretrain": (
            names.family_keys("pretrain"),
            "Build the pretrain cache of a data set (of all: by a backfill) and verify it.",
        ),
        "build_sft": (names.family_keys("sft"), "Build the SFT cache of a data set (of all: by a backfill) and verify it."),
        "build_corpus": ([names.documents], "Clean and sign the documents of a data set (of all: by a backfill)."),
        "find_duplicates": ([names.duplicates], "Find duplicates across all data sets that have a corpus."),
        **{f"find_{step}": ([key], f"Find repeated {step} across all data sets that have them cut.") for step, key in names.cuts.items()},
        "report_corpus": ([names.kept, names.report], "Count the documents of a data set's corpus that are kept, and draw its report."),
        "build_corpus_parts": ([names.corpus_parts], "Clean and sign one part of a corpus (of all: by a backfill)."),
        "hash_signatures": ([names.hashes], "Hash the signatures of all corpora, for a search for duplicates in ranges."),
        "link_ranges": ([names.ranges], "Find the documents that share a hash in one range of hashes (in all: by a backfill)."),
        "plan_parts": ([names.plan], "List the files of a data set, and divide them and its budgets among its parts."),
        "build_parts": ([names.parts], "Build one part of a data set (of all: by a backfill)."),
        "build_val_part": ([names.val_part], "Make the val of a data set in parts, before its parts."),
        "build_index": ([names.index], "Build the indices of a blend (of all: by a backfill) ahead of training."),
        "build_suffixes": ([names.suffixes], "Build the index of a cache for niels-cache find (of all: by a backfill)."),
        **{
            f"publish_{family}": ([key], "Push the cache of a data set (of all: by a backfill) to the address of [publish].")
            for family, key in names.published.items()
        },
        "write_reports": (
            [names.mixture, names.cache_report],
            "Write the reports over everything that is built, as build-all does at the end.",
        ),
    }


def job_of(names: DefinitionNames, asset: dg.AssetKey) -> str:
    """Return the job that materializes an asset."""
    return names.name(next(job for job, (assets, _) in _jobs(names).items() if asset in assets))


def build_jobs(registry: Registry, defined: Collection[dg.AssetKey]) -> list[Any]:
    """Return all jobs of assets that are `defined`, as `dg.Definitions` takes them."""
    names = names_of(registry)
    checks = dg.AssetSelection.checks(*(dg.AssetCheckKey(names.meta[family], IN_SYNC) for family in FAMILIES))
    return [
        *(
            dg.define_asset_job(names.name(job), selection=dg.AssetSelection.assets(*assets), description=text)
            for job, (assets, text) in _jobs(names).items()
            if set(assets) <= set(defined)
        ),
        dg.define_asset_job(
            names.name("verify_caches"),
            selection=checks,
            description="Read and verify every file of every cache, and compare each with the settings: the check caches_in_sync of both "
            "families.",
        ),
        _observe_upstream(registry),
    ]


def _observe_upstream(registry: Registry) -> dg.JobDefinition:
    names = names_of(registry)

    @dg.op(
        name=names.name("observe_revisions"),
        description="Record the revision that every data set's upstream has now.",
        required_resource_keys=names.resources,
    )
    def observe_revisions(context: dg.OpExecutionContext) -> None:
        with retry_at_most():  # a build retries for a longer time than this observation
            for name in registry.partition_keys():
                try:
                    context.log_event(observe_revision(registry, name, root=root_of(context, names)))
                    remove_markers_of(graph(registry, root_of(context, names)), name)
                except Exception as error:  # any error of one source
                    context.log.warning(f"{name}: {describe_error(error)}")
                    log_traceback(error, context.log.info)

    @dg.job(
        name=names.name("observe_upstream"),
        description="Observe upstream of every data set. Partitions whose revision or settings have changed then show as unsynced.",
    )
    def observe_upstream() -> None:
        observe_revisions()

    return observe_upstream


def build_schedules(names: DefinitionNames) -> list[dg.ScheduleDefinition]:
    """Return the nightly schedules."""
    return [
        dg.ScheduleDefinition(
            name=names.name(name),
            job_name=names.name(job),
            cron_schedule=f"{minute} {_NIGHTLY_HOUR} * * *",
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.STOPPED,
            description=f"{description} Every night at {_NIGHTLY_HOUR:02}:{minute:02} UTC.",
        )
        for name, (job, minute, description) in _NIGHTLY.items()
    ]
