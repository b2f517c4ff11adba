"""Dagster's definitions as plain values: names, edges, versions and settings, and no prose."""

from collections.abc import Iterable
from typing import Any

import dagster as dg
from dagster._core.definitions.dependency import NodeHandle  # to ask a job for its checks; no public name


def told_of(definitions: dg.Definitions) -> dict[str, Any]:
    """Return everything that is defined, by its name."""
    repository = definitions.get_repository_def()
    graph = repository.asset_graph
    assets = [graph.get(key) for key in sorted(graph.get_all_asset_keys())]
    ops = {op.name: op for op in _ops(repository)}
    return {
        "assets": {node.key.to_user_string(): _asset(node) for node in assets},
        "checks": {_check_name(key): _check(graph, key) for key in sorted(graph.asset_check_keys, key=_check_name)},
        "ops": {name: _op(ops[name]) for name in sorted(ops)},
        "jobs": {job.name: _job(job) for job in sorted(repository.get_all_jobs(), key=lambda job: job.name)},
        "sensors": {sensor.name: _sensor(sensor, graph) for sensor in sorted(repository.sensor_defs, key=lambda sensor: sensor.name)},
        "schedules": {schedule.name: _schedule(schedule) for schedule in sorted(repository.schedule_defs, key=lambda each: each.name)},
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


def _check_name(key: dg.AssetCheckKey) -> str:
    return f"{key.asset_key.to_user_string()}: {key.name}"


def _check(graph: Any, key: dg.AssetCheckKey) -> dict[str, Any]:
    spec = graph.get_check_spec(key)
    return {
        "blocking": spec.blocking,
        "partitions": _partitions(spec.partitions_def),
        "dependencies": sorted(dependency.asset_key.to_user_string() for dependency in spec.additional_deps),
        "metadata": sorted(spec.metadata or {}),
        "automation": spec.automation_condition is not None,
    }


def _ops(repository: dg.RepositoryDefinition) -> Iterable[dg.OpDefinition]:
    for job in repository.get_all_jobs():
        yield from job.graph.iterate_op_defs()


def _op(op: dg.OpDefinition) -> dict[str, Any]:
    config: Any = op.config_schema.config_type
    fields = getattr(config, "fields", {})
    return {
        "tags": dict(op.tags),
        "pool": op.pool,
        "retries": repr(op.retry_policy),
        "resources": sorted(op.required_resource_keys),
        "config": {name: _field(field) for name, field in sorted(fields.items())},
        "inputs": sorted(each.name for each in op.input_defs),
        "outputs": sorted(each.name for each in op.output_defs),
    }


def _field(field: Any) -> dict[str, Any]:
    return {
        "type": field.config_type.key,
        "required": field.is_required,
        "default": field.default_value if field.default_provided else "<none>",
    }


def _job(job: dg.JobDefinition) -> dict[str, Any]:
    layer = job.asset_layer
    handles = (NodeHandle(node.name, None) for node in job.nodes)
    selected = {key for handle in handles for key in layer.get_selected_entity_keys_for_node(handle)}
    schema: Any = job.run_config_schema.run_config_schema_type
    return {
        "ops": sorted(node.name for node in job.nodes),
        "assets": sorted(key.to_user_string() for key in layer.executable_asset_keys),
        "checks": sorted(_check_name(key) for key in selected if isinstance(key, dg.AssetCheckKey)),
        "partitions": _partitions(job.partitions_def),
        "tags": {**job.tags, **job.run_tags},
        "resources": sorted(job.required_resource_keys),
        "executor": job.executor_def.name,
        "config": sorted(schema.fields),
        "config of ops": _field(schema.fields["ops"])["default"],
    }


def _sensor(sensor: dg.SensorDefinition, graph: Any) -> dict[str, Any]:
    selection = sensor.asset_selection
    return {
        "type": sensor.sensor_type.value,
        "seconds": sensor.minimum_interval_seconds,
        "status": sensor.default_status.value,
        "assets": sorted(key.to_user_string() for key in selection.resolve(graph)) if selection is not None else None,
        "resources": sorted(sensor.required_resource_keys),
        "tags": dict(sensor.tags or {}),
    }


def _schedule(schedule: Any) -> dict[str, Any]:
    return {
        "cron": schedule.cron_schedule,
        "timezone": schedule.execution_timezone,
        "job": schedule.job_name,
        "status": schedule.default_status.value,
        "tags": dict(schedule.tags or {}),
    }
