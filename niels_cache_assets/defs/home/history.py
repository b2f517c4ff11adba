"""Dagster's records of the folders of a cache, which reports show, and with which `verify` compares the files on disk.

Reports show the results of a folder's checks, and the last seen revision of its upstream. `niels-cache verify` compares the files with
meta.json. So if someone changes a cache and also renews every hash in it, `verify` finds nothing. But Dagster's event log also has
meta_sha256, which covers the hashes of all files. `niels-cache verify --against-dagster` compares the cache with this record.

One home may serve several cache roots. Only records about the given folders and their current content count. Each folder costs a few small
queries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.defs.assets.upstream import REVISION
from niels_cache_assets.defs.checks import build_checks
from niels_cache_assets.defs.home.home_errors import home_errors
from niels_cache_assets.defs.home.instance import CONFIG_NAME, HOME_VARIABLE, dagster_home, ensure_instance
from niels_cache_assets.defs.keys import DOCUMENTS, DUPLICATES, KEPT, META_KEYS, TOKENIZER, UPSTREAM_KEYS
from niels_cache_assets.defs.private import COMPLETED, PartitionKeyFilter
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports.cache import CacheItem
from niels_cache_assets.reports.history import CheckOutcome, CheckRecord, FolderHistory, History
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import load_meta
from niels_cache_runtime.verify import Finding

_RECORDS = 1000  # read at most this many of the newest records of an asset and partition, because a home may serve many cache roots
_DIGITS = 12
_ASSETS = {  # by the name of the folder
    "tokenizer": TOKENIZER,
    "corpus": DOCUMENTS,
    "duplicates": DUPLICATES,
    "pretrain": META_KEYS["pretrain"],
    "sft": META_KEYS["sft"],
}
_RESULTS = 20  # read this many of the newest results of a check


def history_at_home(registry: Registry, items: Sequence[CacheItem], *, root: Path) -> History:
    """Return the history from the Dagster home (DAGSTER_HOME, otherwise .dagster here). Without a home, its `source` says so."""
    home = dagster_home()
    if not (home / CONFIG_NAME).exists():
        return History(source=f"none: {home} is not a Dagster home; set {HOME_VARIABLE} to the home of the builds")
    try:
        with ensure_instance(home) as instance:
            return history_of(instance, registry, items, root=root)
    except NielsCacheError as error:
        return History(source=f"none: {error}")
    except Exception as error:  # a damaged database or a different version of Dagster; the report is also useful without a history
        reason = str(error).partition("\n")[0]
        return History(source=f"none: {home} cannot be read: {type(error).__name__}: {reason}")


def history_of(instance: dg.DagsterInstance, registry: Registry, items: Sequence[CacheItem], *, root: Path) -> History:
    """Return the history of items from the records of an instance."""
    reader = _HistoryReader(instance, registry, root)
    return History(
        source=f"recorded by Dagster in {instance.root_directory}",
        folders={item.state.directory.absolute(): reader.recorded(item) for item in items},
        checks=tuple(reader.family_checks()),
    )


class _HistoryReader:
    def __init__(self, instance: dg.DagsterInstance, registry: Registry, root: Path) -> None:
        self._instance, self._root = instance, root
        specs = [spec for definition in build_checks(registry) for spec in definition.check_specs]
        self._keys = [spec.key for spec in specs]
        self._partitioned = {spec.key for spec in specs if spec.partitions_def is not None}

    def recorded(self, item: CacheItem) -> FolderHistory:
        folder, meta_sha256 = item.state.directory, item.meta.get("meta_sha256")
        key, partition = asset_of(self._root, folder)
        if key is None or meta_sha256 is None:
            return FolderHistory()
        assets = [key, KEPT] if item.state.kind == "corpus" else [key]
        own = [check for check in self._keys if check.asset_key in assets and (check in self._partitioned) == (partition is not None)]
        checks = [self._newest(check, partition, folder, meta_sha256) for check in own]
        return FolderHistory(
            newest_revision=None if item.revision is None or partition is None else self._newest_revision(item.state.kind, partition),
            checks=tuple(check for check in checks if check is not None),
        )

    def family_checks(self) -> Iterator[CheckRecord]:
        """Yield the results of checks of a whole family, such as caches_in_sync."""
        for key in self._keys:
            if key not in self._partitioned and key.asset_key in META_KEYS.values():
                found = self._newest(key, None, self._root, None)
                if found is not None:
                    yield replace(found, name=f"{key.name} ({key.asset_key.path[0]})")

    def _newest_revision(self, kind: str, partition: str) -> str | None:
        """Return the revision that upstream had at the last observation that names one."""
        key = UPSTREAM_KEYS["sft" if kind == "sft" else "pretrain"]
        filters = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition])
        seen = (record.asset_observation for record in self._instance.fetch_observations(filters, limit=_RECORDS).records)
        return next((str(each.metadata[REVISION].value) for each in seen if each is not None and REVISION in each.metadata), None)

    def _newest(self, key: dg.AssetCheckKey, partition: str | None, folder: Path, meta_sha256: str | None) -> CheckRecord | None:
        """Return the newest result of a check of the current content of this folder."""
        filters = PartitionKeyFilter(key=partition if key in self._partitioned else None)
        results = self._instance.event_log_storage.get_asset_check_execution_history(
            key, limit=_RESULTS, status=COMPLETED, partition_filter=filters
        )
        for result in results:
            evaluation = result.evaluation
            target = None if evaluation is None else evaluation.target_materialization_data
            if evaluation is None or target is None or result.event is None:
                continue
            checked = dg.AssetRecordsFilter(asset_key=key.asset_key, storage_ids=[target.storage_id])
            if any(_is_of(record, folder, meta_sha256) for record in self._instance.fetch_materializations(checked, limit=1).records):
                failed: CheckOutcome = "warning" if evaluation.severity == dg.AssetCheckSeverity.WARN else "failed"
                outcome = "passed" if evaluation.passed else failed
                return CheckRecord(name=key.name, outcome=outcome, said=evaluation.description or "", when=result.event.timestamp)
        return None


def _is_of(record: dg.EventLogRecord, folder: Path, meta_sha256: str | None) -> bool:
    """Return whether a record belongs to this folder. If the record and meta.json both have a hash, both hashes must be equal too."""
    metadata = metadata_of(record)
    uri, here = str(metadata.get("dagster/uri", "")), folder.absolute().as_uri()
    recorded = metadata.get("meta_sha256")
    return (uri == here or uri.startswith(f"{here}/")) and (None in (recorded, meta_sha256) or recorded == meta_sha256)


def recorded_findings(root: Path, folders: Sequence[Path]) -> list[Finding]:
    """Return findings for folders below `root` that differ from Dagster's record or have no record.

    Indices are left out, because an index can be rebuilt.

    Raises:
        NielsCacheError: If there is no Dagster home.
        NotWrittenError: If the home's disk or database fails.
    """
    home = dagster_home()
    if not (home / CONFIG_NAME).exists():
        raise NielsCacheError(f"{home}: is not a Dagster home; set {HOME_VARIABLE} to the home of the builds")
    with home_errors(home), ensure_instance(home) as instance:
        return [finding for folder in folders for finding in _findings(instance, root, folder)]


def _findings(instance: dg.DagsterInstance, root: Path, folder: Path) -> Iterator[Finding]:
    key, partition = asset_of(root, folder)
    if key is None:
        return
    try:
        meta_sha256 = load_meta(str(folder / META_NAME)).get("meta_sha256")
    except NielsCacheError:  # verify reports this
        return
    if meta_sha256 is None:  # made by a different program; verify notes this
        return
    filters = dg.AssetRecordsFilter(asset_key=key, asset_partitions=None if partition is None else [partition])
    recorded = _recorded_sha256(instance.fetch_materializations(filters, limit=_RECORDS).records, folder)
    if recorded is None:
        problem = "Dagster has no record of this build (it was imported, built without Dagster, or recorded in another home)"
    elif recorded != meta_sha256:
        problem = f"its meta_sha256 is {meta_sha256[:_DIGITS]}, Dagster recorded {recorded[:_DIGITS]}: changed since, or built without it"
    else:
        return
    yield Finding(kind="recorded", folder=str(folder), path=META_NAME, problem=problem)


def asset_of(root: Path, folder: Path) -> tuple[dg.AssetKey | None, str | None]:
    """Return the asset and the partition of a folder, None for what it does not have."""
    kind, *name = folder.relative_to(root).parts
    return _ASSETS.get(kind), next(iter(name), None)


def _recorded_sha256(records: Sequence[dg.EventLogRecord], folder: Path) -> str | None:
    """Return the hash of the newest build in this folder.

    If there is no such build, for example because the cache was moved, return the hash of the newest build in any folder.
    """
    found: dict[bool, str] = {}
    for record in records:
        metadata = metadata_of(record)
        if isinstance(metadata.get("meta_sha256"), str):
            here = str(metadata.get("dagster/uri", "")).startswith(folder.absolute().as_uri())
            found.setdefault(here, metadata["meta_sha256"])
    return found.get(True, found.get(False))


def metadata_of(record: dg.EventLogRecord) -> dict[str, Any]:
    """Return the metadata of a materialization as plain values, or an empty dict if the record is not a materialization."""
    event = record.asset_materialization
    return {} if event is None else {name: value.value for name, value in event.metadata.items()}
