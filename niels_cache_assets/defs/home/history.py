"""Dagster's records of the folders of a cache, which reports show, and with which `verify` compares the files on disk.

Reports show the results of a folder's checks, and the last seen revision of its upstream. `niels-cache verify` compares the files with
meta.json. So if someone changes a cache and also renews every hash in it, `verify` finds nothing. But Dagster's event log also has
meta_sha256, which covers the hashes of all files. `niels-cache verify --against-dagster` compares the cache with this record.

One home may serve several cache roots. Only records about the given folders and their current content count. Each folder costs a few small
queries.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.defs.assets.upstream import last_observation, observed_revision
from niels_cache_assets.defs.checks import build_checks
from niels_cache_assets.defs.home.home_errors import home_errors
from niels_cache_assets.defs.home.instance import CONFIG_NAME, HOME_VARIABLE, dagster_home, ensure_instance
from niels_cache_assets.defs.keys import DefinitionNames, names_of
from niels_cache_assets.defs.private import COMPLETED, PartitionKeyFilter
from niels_cache_assets.defs.provenance import materializations
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports.cache import CacheItem
from niels_cache_assets.reports.history import CheckOutcome, CheckRecord, FolderHistory, History
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import load_meta
from niels_cache_runtime.verify import Finding

_RECORDS = 1000  # read at most this many of the newest records of an asset and partition, because a home may serve many cache roots
_DIGITS = 12
_RESULTS = 20  # read this many of the newest results of a check


def history_at_home(registry: Registry, items: Sequence[CacheItem], *, root: Path) -> History:
    """Return the history from the Dagster home (DAGSTER_HOME, otherwise .dagster here). Without a home, its `source` says so."""
    try:
        with _home_of_builds() as instance:
            return history_of(instance, registry, items, root=root)
    except NielsCacheError as error:
        return History(source=f"none: {error}")
    except Exception as error:  # a damaged database or a different version of Dagster; the report is also useful without a history
        reason = str(error).partition("\n")[0]
        return History(source=f"none: {dagster_home()} cannot be read: {type(error).__name__}: {reason}")


@contextmanager
def _home_of_builds() -> Iterator[dg.DagsterInstance]:
    """Open the instance of the Dagster home.

    Raises:
        NielsCacheError: If there is no Dagster home.
        NotWrittenError: If the home's disk or database fails.
    """
    home = dagster_home()
    if not (home / CONFIG_NAME).exists():
        raise NielsCacheError(f"{home}: is not a Dagster home; set {HOME_VARIABLE} to the home of the builds")
    with home_errors(home), ensure_instance(home) as instance:
        yield instance


def history_of(instance: dg.DagsterInstance, registry: Registry, items: Sequence[CacheItem], *, root: Path) -> History:
    """Return the history of items from the records of an instance."""
    names = names_of(registry)
    specs = [spec for definition in build_checks(registry) for spec in definition.check_specs]

    def recorded(item: CacheItem) -> FolderHistory:
        folder, meta_sha256 = item.directory, item.meta.get("meta_sha256")
        key, partition = asset_of(names, root, folder)
        if key is None or meta_sha256 is None:
            return FolderHistory()
        assets = [key, names.kept] if item.kind == "corpus" else [key]
        own = [spec for spec in specs if spec.asset_key in assets and (spec.partitions_def is None) == (partition is None)]
        checks = [_newest(instance, spec, partition, folder, meta_sha256) for spec in own]
        seen = None if item.revision is None or partition is None else last_observation(instance, registry, partition)
        builds = [_recorded(record, folder) for record in materializations(instance, key, partition, limit=_RESULTS)]
        took = next(
            (took for *found, took in builds if took is not None and found == [True, meta_sha256]), None
        )  # None for a build that was found
        return FolderHistory(newest_revision=observed_revision(seen), checks=tuple(filter(None, checks)), seconds=took)

    # checks of a whole family, such as caches_in_sync
    of_family = [spec for spec in specs if spec.partitions_def is None and spec.asset_key in names.meta.values()]
    found = [(spec, _newest(instance, spec, None, root, None)) for spec in of_family]
    return History(
        source=f"recorded by Dagster in {instance.root_directory}",
        folders={item.directory.absolute(): recorded(item) for item in items},
        checks=tuple(replace(each, name=f"{spec.name} ({names.kind_of(spec.asset_key)})") for spec, each in found if each is not None),
    )


def _newest(
    instance: dg.DagsterInstance, spec: dg.AssetCheckSpec, partition: str | None, folder: Path, meta_sha256: str | None
) -> CheckRecord | None:
    """Return the newest result of a check of the current content of this folder."""
    results = instance.event_log_storage.get_asset_check_execution_history(
        spec.key, limit=_RESULTS, status=COMPLETED, partition_filter=PartitionKeyFilter(key=partition)
    )
    for result in results:
        evaluation = result.evaluation
        if not isinstance(evaluation, dg.AssetCheckEvaluation) or result.event is None:  # the run ended before the check
            continue
        target = evaluation.target_materialization_data
        if target is None:
            continue
        builds = [_recorded(record, folder) for record in materializations(instance, spec.asset_key, storage_ids=[target.storage_id])]
        if any(is_here and (None in (sha256, meta_sha256) or sha256 == meta_sha256) for is_here, sha256, _ in builds):
            failed: CheckOutcome = "warning" if evaluation.severity == dg.AssetCheckSeverity.WARN else "failed"
            outcome = "passed" if evaluation.passed else failed
            return CheckRecord(name=spec.name, outcome=outcome, said=evaluation.description or "", when=result.event.timestamp)
    return None


def _recorded(record: dg.EventLogRecord, folder: Path) -> tuple[bool, str | None, float | None]:
    """Return whether a record is of a build in this folder, the hash of the build, and how long it took in seconds."""
    event = record.asset_materialization
    metadata: dict[str, Any] = {} if event is None else {name: value.value for name, value in event.metadata.items()}
    uri, here = str(metadata.get("dagster/uri", "")), folder.absolute().as_uri()
    return uri == here or uri.startswith(f"{here}/"), metadata.get("meta_sha256"), metadata.get("seconds")


def recorded_findings(registry: Registry, root: Path, folders: Sequence[Path]) -> list[Finding]:
    """Return findings for folders below `root` that differ from Dagster's record or have no record.

    Indices are left out, because an index can be rebuilt.

    Raises:
        NielsCacheError: If there is no Dagster home.
        NotWrittenError: If the home's disk or database fails.
    """
    names = names_of(registry)
    with _home_of_builds() as instance:
        return [finding for folder in folders for finding in _findings(instance, names, root, folder)]


def _findings(instance: dg.DagsterInstance, names: DefinitionNames, root: Path, folder: Path) -> Iterator[Finding]:
    key, partition = asset_of(names, root, folder)
    if key is None:
        return
    try:
        meta_sha256 = load_meta(folder / META_NAME).get("meta_sha256")
    except NielsCacheError:  # verify reports this
        return
    if meta_sha256 is None:  # made by a different program; verify notes this
        return
    builds = [_recorded(record, folder) for record in materializations(instance, key, partition, limit=_RECORDS)]
    hashes = [sha256 for _, sha256, _ in sorted(builds, key=lambda build: not build[0]) if sha256 is not None]
    recorded = next(iter(hashes), None)  # the newest build in this folder, otherwise in any folder, because the cache may have been moved
    if recorded is None:
        problem = "Dagster has no record of this build (it was imported, built without Dagster, or recorded in another home)"
    elif recorded != meta_sha256:
        problem = f"its meta_sha256 is {meta_sha256[:_DIGITS]}, Dagster recorded {recorded[:_DIGITS]}: changed since, or built without it"
    else:
        return
    yield Finding(kind="recorded", folder=str(folder), path=META_NAME, problem=problem)


def asset_of(names: DefinitionNames, root: Path, folder: Path) -> tuple[dg.AssetKey | None, str | None]:
    """Return the asset and the partition of a folder, None for what it does not have."""
    assets = {
        "tokenizer": names.tokenizer,
        "corpus": names.documents,
        "duplicates": names.duplicates,
        "suffixes": names.suffixes,
        **names.meta,
    }
    parts = folder.relative_to(root).parts if folder.is_relative_to(root) else ()
    match parts:
        case ["repeats", step]:
            return names.assets.get(f"repeats/{step}"), None
        case [kind]:
            return assets.get(kind), None
        case [kind, name]:
            return assets.get(kind), name
    return None, None  # the root, a part, which is deeper, or a folder elsewhere
