"""Dagster's asset graph as plain values, and the names of all definitions. No prose."""

from collections.abc import Iterable
from typing import Any

import dagster as dg


def told_of(definitions: dg.Definitions) -> dict[str, Any]:
    """Return every asset, and the names of everything else."""
    repository = definitions.get_repository_def()
    graph = repository.asset_graph
    assets = [graph.get(key) for key in sorted(graph.get_all_asset_keys())]
    jobs = repository.get_all_jobs()
    return {
        "assets": {node.key.to_user_string(): _asset(node) for node in assets},
        "checks": {f"{key.asset_key.to_user_string()}: {key.name}": graph.get_check_spec(key).blocking for key in graph.asset_check_keys},
        "jobs": {job.name: sorted(node.name for node in job.nodes) for job in jobs},
        "pools": {op.name: op.pool for job in jobs for op in job.graph.iterate_op_defs()},
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
        "resources": sorted(repository.get_top_level_resources()),
    }


def _asset(node: Any) -> dict[str, Any]:
    definition = node.assets_def
    return {
        "group": node.group_name,
        "kinds": sorted(node.kinds),
        "owners": list(node.owners),
        "tags": dict(sorted(node.tags.items())),
        "code version": node.code_version,
        "partitions": _partitions(node.partitions_def),
        "dependencies": {key.to_user_string(): _mapping(node.partition_mappings.get(key)) for key in sorted(node.parent_keys)},
        "checks": sorted(key.name for key in node.check_keys),
        "metadata": sorted(node.metadata),
        "execution": node.execution_type.value,
        "io manager": node.io_manager_key,
        "made together with": sorted(key.to_user_string() for key in node.execution_set_asset_keys - {node.key}),
        "op": definition.op.name if definition.is_executable else None,
        "can be built in part": definition.can_subset,
        "backfill policy": repr(node.backfill_policy),
        "automation": [*_conditions(node.automation_condition)] if node.automation_condition else None,
    }


def _partitions(definition: Any) -> Any:
    return None if definition is None else {type(definition).__name__: definition.get_partition_keys()}


def _mapping(mapping: Any) -> str | None:
    """Return how the partitions of two assets belong together, or None if that is Dagster's default."""
    return None if mapping is None else repr(mapping)


def _conditions(condition: Any, depth: int = 0) -> Iterable[str]:
    yield "  " * depth + " ".join(filter(None, (condition.name, condition.get_label())))
    for child in condition.children:
        yield from _conditions(child, depth + 1)
