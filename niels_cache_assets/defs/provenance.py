"""Queries for recorded events, and results that no run of Dagster has made, recorded as if a run had made them.

Dagster compares the newest event of an asset with the newest events of its inputs. It finds the code version and the inputs of a result in
tags of the event, which a run adds. With the same tags, a result without a run is as fresh or as stale as that of a run.
Each input costs a query or two.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import dagster as dg

DATA_VERSION_TAG = "dagster/data_version"
INPUT_VERSION_TAG = "dagster/input_data_version/"  # plus the key of an input asset
POINTER_TAG = "dagster/input_event_pointer/"  # plus the key of an input asset; the value is its newest event, in any partition
FOUND_TAG = "niels_cache/found_by"  # what has recorded an event without a run
_COMPARED = ("meta_sha256", "dagster/uri", "groups", "exclude")  # metadata that tells results of one version apart
_MOST_PARTITIONS = 100  # with as many partitions of an input, Dagster takes the version of the newest one


def materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None = None, *, limit: int = 1, **bounds: Any
) -> Sequence[dg.EventLogRecord]:
    """Return the newest materializations of an asset or a partition, the newest first; `bounds` are those of `dg.AssetRecordsFilter`."""
    return instance.fetch_materializations(_filter(key, partition, bounds), limit=limit).records


def observations(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None = None, *, limit: int = 1, **bounds: Any
) -> Sequence[dg.EventLogRecord]:
    """Return the newest observations, as `materializations` does."""
    return instance.fetch_observations(_filter(key, partition, bounds), limit=limit).records


def _filter(key: dg.AssetKey, partition: str | None, bounds: dict[str, Any]) -> dg.AssetRecordsFilter:
    return dg.AssetRecordsFilter(key, asset_partitions=None if partition is None else [partition], **bounds)


def last_materialization(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> dg.AssetMaterialization | None:
    """Return the newest materialization of an asset or a partition, or None."""
    return next((record.asset_materialization for record in materializations(instance, key, partition)), None)


def result_tags(instance: dg.DagsterInstance, graph: Any, key: dg.AssetKey, partition: str | None, version: str) -> dict[str, str]:
    """Return the tags that a run would give now to the event of a result.

    Args:
        instance: The instance with the events of the inputs.
        graph: The asset graph of the definitions.
        key: Key of the asset.
        partition: Its partition.
        version: Data version of the result.
    """
    asset = graph.get(key)
    tags = {
        "dagster/code_version": asset.code_version,
        DATA_VERSION_TAG: version,
        "dagster/data_version_is_user_provided": "true",
    }
    for parent in asset.parent_keys:
        is_internal = parent in asset.execution_set_asset_keys  # recorded before this asset, for the same partition
        newest = materializations(instance, parent, partition if is_internal else None) or observations(instance, parent)
        input_version, pointer = None, "NULL"
        if newest:
            input_version, pointer = (newest[0].event_log_entry.tags or {}).get(DATA_VERSION_TAG), str(newest[0].storage_id)
            if graph.get(parent).is_partitioned and not is_internal:
                mapped = graph.get_parent_partition_keys_for_child(partition, parent, key).partitions_subset
                input_version = _version_of_partitions(instance, parent, [*mapped.get_partition_keys()]) or input_version
        tags[INPUT_VERSION_TAG + parent.to_user_string()] = input_version or "INITIAL"
        tags[POINTER_TAG + parent.to_user_string()] = pointer
    return tags


def _version_of_partitions(instance: dg.DagsterInstance, key: dg.AssetKey, partitions: list[str]) -> str | None:
    """Return the version of some partitions of an input, or None if there are too many."""
    if len(partitions) >= _MOST_PARTITIONS:
        return None
    found = instance.event_log_storage.get_latest_tags_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG], asset_partitions=partitions
    )
    versions = "".join(tags[DATA_VERSION_TAG] for _, tags in sorted(found.items()))
    return hashlib.sha256(versions.encode()).hexdigest()


def is_recorded(last: dg.AssetMaterialization | None, event: dg.AssetMaterialization) -> bool:
    """Return whether the newest event of an asset records the same result as `event`, made from the same inputs."""
    if last is None:
        return False
    same_tags = all((last.tags or {}).get(tag) == value for tag, value in (event.tags or {}).items() if not tag.startswith(POINTER_TAG))
    return same_tags and all(last.metadata.get(name) == event.metadata.get(name) for name in _COMPARED)
