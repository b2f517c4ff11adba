"""A sensor that records plans and parts that were built without Dagster, for example by an array job.

It is on by default with [cluster] or a store.

Each finished part is recorded once, with the metadata and the data version that its step would record. A tick looks at the steps of each
data set in parts, in a folder or in a store (artifacts/parts/watch.py), and compares only parts that have changed since the last tick.
Dagster's records determine whether a part is new, so a part that a run has recorded is not recorded again, and a lost cursor does no harm.
While a run builds a part, the run records it. Without a run, a tick only notes a new part, and the next tick records it: `build-all` builds
parts in children, and their runs follow some seconds later.

While a step of a data set is running, each tick also observes the plan, with a table of all steps that run, failed or stopped answering,
whoever builds them. After that, it observes only changes. The time of the observation is the age of the table. A tick that has no time left
for a data set begins with it the next time.
"""

import json
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG  # no public name
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES  # no public name
from dagster._core.storage.tags import PARTITION_NAME_TAG

from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.watch import RUNNING, WAITING, WatchedStep, describe_steps, summarize_steps
from niels_cache_assets.artifacts.stored import read_finished
from niels_cache_assets.base.wording import format_count
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assets.corpus import corpus_part_metadata
from niels_cache_assets.defs.assets.parts import is_recorded_plan, list_of_ids, part_metadata, plan_metadata, plan_version
from niels_cache_assets.defs.assets.upstream import last_materialization, materialized_version
from niels_cache_assets.defs.metadata.builds import STATE
from niels_cache_assets.defs.metadata.entries import table, without_empty
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.defs.resources import RootParam
from niels_cache_assets.parts.lease import DONE
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError

PARTS_SENSOR = "finished_parts_sensor"
_SECONDS = 60  # between two ticks
_LOOK_SECONDS = 20.0  # a tick looks at no further data set after this time; Dagster ends a tick after 60 seconds
_RECORD_SECONDS = 40.0  # after this time, the next tick records the rest
_STATE = "built outside of Dagster"


_ASSETS = {"plan": keys.PLAN, "val_part": keys.VAL_PART, "part": keys.PARTS, "corpus_part": keys.CORPUS_PARTS}


def finished_parts_sensor(registry: Registry) -> dg.SensorDefinition:
    """Return the sensor.

    Its cursor is {next: the data set to begin with, seen: {key: stamp}, states: {data set: {state: steps}}}.
    The stamp of a part that was new at the last look begins with "new".
    """
    graph_at = cache(partial(graph, registry))  # it knows what the last look has read in a store

    @dg.sensor(
        name=PARTS_SENSOR,
        minimum_interval_seconds=_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING
        if registry.cluster.model_fields_set or registry.build.store is not None
        else dg.DefaultSensorStatus.STOPPED,
        description="Records plans and parts that were built without Dagster, such as by an array job of Slurm. Each is recorded once. "
        "Observes what is running, whoever started it.",
    )
    def sensor(context: dg.SensorEvaluationContext, cache_root: RootParam) -> dg.SensorResult:
        limit_parts(context.instance, registry)
        state = json.loads(context.cursor or "{}")
        seen: dict[str, str] = state.get("seen", {})
        states: dict[str, Mapping[str, int]] = state.get("states", {})
        names, artifacts = keys.datasets_with_plan(registry), graph_at(cache_root.path)
        start = names.index(state["next"]) if state.get("next") in names else 0
        events: list[dg.AssetMaterialization | dg.AssetObservation] = []
        began, looked = time.monotonic(), 0
        for name in names[start:] + names[:start]:
            if looked and time.monotonic() - began >= _LOOK_SECONDS:
                break
            looked += 1
            steps = artifacts.watch(name)
            before, states[name] = states.get(name), summarize_steps(steps)["states"]
            if states[name].get(RUNNING) or states[name] != before:
                events.append(_observation(name, steps))
            for step in steps:
                kind, _, partition = step.key.partition("/")
                if kind not in _ASSETS or step.stamp is None or seen.get(step.key) == step.stamp:
                    continue
                if time.monotonic() - began >= _RECORD_SECONDS or _is_being_built(context.instance, partition):
                    continue
                try:
                    event = _new_event(context.instance, _ASSETS[kind], partition, step.artifact)
                except NielsCacheError:  # it was replaced in the meantime
                    continue
                is_noted = seen.get(step.key) == f"new {step.stamp}"
                seen[step.key] = step.stamp if event is None or is_noted else f"new {step.stamp}"
                if event is not None and is_noted:
                    events.append(event)
        known = {*artifacts.keys}
        cursor = {
            "next": names[(start + looked) % len(names)] if names else None,
            "states": {name: states[name] for name in names if name in states},
            "seen": {key: stamp for key, stamp in seen.items() if key in known},
        }
        nothing = dg.SkipReason(f"Looked at {format_count(looked, 'data set')}; nothing is new")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(cursor), skip_reason=None if events else nothing)

    return sensor


def _observation(name: str, steps: Sequence[WatchedStep]) -> dg.AssetObservation:
    """Return an observation of a plan, with a table of the steps that are neither done nor waiting."""
    rows = [{"step": each.key, "state": each.state, "progress": each.reason} for each in steps if each.state not in (WAITING, DONE)]
    shown = {"steps": describe_steps(steps), "active": table(rows, step="string", state="string", progress="string")}
    return dg.AssetObservation(keys.PLAN, partition=name, metadata=without_empty(shown))


def _is_being_built(instance: dg.DagsterInstance, partition: str) -> bool:
    filters = dg.RunsFilter(tags={PARTITION_NAME_TAG: partition}, statuses=[*IN_PROGRESS_RUN_STATUSES])
    return bool(instance.get_run_ids(filters, limit=1))


def _new_event(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str, artifact: Artifact) -> dg.AssetMaterialization | None:
    """Return the materialization of a finished artifact, or None if Dagster has it.

    Raises:
        NielsCacheError: If the record of the artifact cannot be read.
    """
    meta = read_finished(artifact)
    last = last_materialization(instance, asset, partition)
    outcome = Outcome(key=artifact.key, state="built", meta=meta, directory=artifact.directory)
    if isinstance(artifact, PartsPlan):
        excluded = list_of_ids(artifact.source)
        version = plan_version(instance, partition, meta, excluded)
        is_recorded = last is not None and is_recorded_plan(last, meta, version, excluded)
        metadata = plan_metadata(outcome, version, excluded)
    else:
        version = str(meta["content_sha256"])
        is_recorded = last is not None and materialized_version(last) == version
        metadata = (corpus_part_metadata if asset == keys.CORPUS_PARTS else part_metadata)(outcome)
    if is_recorded:
        return None
    tags = {DATA_VERSION_TAG: version}
    return dg.AssetMaterialization(asset, partition=partition, metadata={**metadata, STATE: _STATE}, tags=tags)
