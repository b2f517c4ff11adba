"""A sensor that records plans and parts that were built without Dagster, for example by an array job. It is on by default with [cluster].

Each finished part is recorded once, with the metadata and the data version that its step would record. A tick looks at every part on the
disk, which is one system call for each. It compares only parts that have changed since the last tick. Dagster's records determine
whether a part is new, so a part that a run has recorded is not recorded again, and a lost cursor does no harm. While a run builds a part,
the run records it. Without a run, a tick only notes a new part, and the next tick records it: `build-all` builds parts in children, and
their runs follow some seconds later.

While a step of a data set is running, each tick also observes the plan, with a table of all steps that run, failed or stopped answering,
whoever builds them (artifacts/parts/watch.py). After that, it observes only changes. The time of the observation is the age of the table.
This takes two small reads for each step. A tick that has no time left for a data set begins with it the next time.
"""

import json
import os
import time
from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.watch import RUNNING, WAITING, describe_steps, summarize_steps
from niels_cache_assets.base.wording import format_count
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assets.corpus import corpus_part_metadata
from niels_cache_assets.defs.assets.parts import is_recorded, part_metadata, plan_record
from niels_cache_assets.defs.assets.upstream import DATA_VERSION_TAG, last_materialization
from niels_cache_assets.defs.cursors import in_turn
from niels_cache_assets.defs.metadata.builds import STATE
from niels_cache_assets.defs.metadata.entries import table, without_empty
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.defs.resources import RootParam
from niels_cache_assets.parts.lease import DONE
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError

PARTS_SENSOR = "finished_parts_sensor"
_SECONDS = 60  # between two ticks
_SCAN_SECONDS = 20.0  # a tick looks at no further part after this time; Dagster ends a tick after 60 seconds
_STATE = "built outside of Dagster"


def finished_parts_sensor(registry: Registry) -> dg.SensorDefinition:
    """Return the sensor.

    Its cursor is {next: the next key to look at, seen: {key: stamp}, pending: {key: stamp}, states: {data set: {state: steps}},
    watch: the next data set to observe}. A stamp is the inode and the time of a record. Pending are parts that were new at the last look.
    """

    @dg.sensor(
        name=PARTS_SENSOR,
        minimum_interval_seconds=_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING if registry.cluster.model_fields_set else dg.DefaultSensorStatus.STOPPED,
        description="Records plans and parts that were built without Dagster, such as by an array job of Slurm. Each is recorded once. "
        "Observes what is running, whoever started it.",
    )
    def sensor(context: dg.SensorEvaluationContext, cache_root: RootParam) -> dg.SensorResult:
        limit_parts(context.instance, registry)
        artifacts, names, problems = graph(registry, cache_root.path), keys.datasets_with_plan(registry), list[str]()
        parts = {part.key: part for name in names for part in _parts(artifacts, name, problems)}
        cursor = json.loads(context.cursor or "{}")
        for key, known in (("seen", parts), ("pending", parts), ("states", names)):
            cursor[key] = {name: value for name, value in cursor.get(key, {}).items() if name in known}
        seen, pending, states = cursor["seen"], cursor["pending"], cursor["states"]
        events: list[dg.AssetMaterialization | dg.AssetObservation] = []
        began, count = time.monotonic(), 0
        for key in in_turn([*parts], cursor, "next", until=began + _SCAN_SECONDS):
            count += 1
            stamp = _stamp(parts[key])
            if stamp is None or seen.get(key) == stamp or _is_being_built(context.instance, key):
                continue
            event = _event(context.instance, parts[key])
            if event is None:
                continue
            is_new = not is_recorded(last_materialization(context.instance, event.asset_key, str(event.partition)), event)
            if is_new and pending.get(key) != stamp:
                pending[key] = stamp
                continue
            pending.pop(key, None)
            seen[key] = stamp
            events += [event] if is_new else []
        for name in in_turn(names, cursor, "watch", until=began + 2 * _SCAN_SECONDS):
            steps, before = artifacts.watch(name), states.get(name)
            states[name] = summarize_steps(steps)["states"]
            if states[name].get(RUNNING) or states[name] != before:
                shown = [step for step in steps if step.state not in (WAITING, DONE)]
                rows = [{"step": step.key, "state": step.state, "progress": step.reason} for step in shown]
                active = table(rows, step="string", state="string", progress="string")
                metadata = without_empty({"steps": describe_steps(steps), "active": active})
                events.append(dg.AssetObservation(keys.PLAN, partition=name, metadata=metadata))
        summary = f"Looked at {format_count(count, 'part')}; recorded {len(events)}"
        return dg.SensorResult(
            asset_events=events,
            cursor=json.dumps(cursor),
            skip_reason=dg.SkipReason("; ".join([summary, *problems])) if not events else None,
        )

    return sensor


def _parts(artifacts: Graph, name: str, problems: list[str]) -> Iterator[Artifact]:
    """Yield the plan, the val part and the parts of a data set and of its corpus. Add a line to `problems` if there is no plan."""
    yield artifacts.plan(name)
    for joined in artifacts.joined(name):
        try:
            yield from [*joined.members()]
        except NielsCacheError as error:  # no plan, no tokenizer or no corpus yet, or those of other settings
            problems.append(str(error))


def _stamp(artifact: Artifact) -> str | None:
    """Return a value that changes when the record of a build is replaced, or None if there is no record."""
    assert artifact.record is not None
    try:
        status = os.stat(artifact.directory / artifact.record)
    except OSError:
        return None
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}"


def _is_being_built(instance: dg.DagsterInstance, key: str) -> bool:
    filters = dg.RunsFilter(tags={keys.PARTITION_TAG: key.partition("/")[2]}, statuses=keys.IN_PROGRESS)
    return bool(instance.get_run_ids(filters, limit=1))


def _event(instance: dg.DagsterInstance, artifact: Artifact) -> dg.AssetMaterialization | None:
    """Return the event that records a build, or None if the build is not current."""
    try:
        meta = artifact.current()
    except NielsCacheError:
        return None
    outcome = Outcome(key=artifact.key, state="built", meta=meta, directory=artifact.directory)
    asset, partition = keys.recorded_as(artifact.key)
    if isinstance(artifact, PartsPlan):
        metadata, version = plan_record(instance, outcome, artifact.source)
    else:
        metadata, version = (corpus_part_metadata if asset == keys.CORPUS_PARTS else part_metadata)(outcome), meta["content_sha256"]
    return dg.AssetMaterialization(asset, partition=partition, metadata={**metadata, STATE: _STATE}, tags={DATA_VERSION_TAG: version})
