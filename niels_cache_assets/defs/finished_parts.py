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
from collections.abc import Sequence
from functools import cache, partial

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.parts.watch import RUNNING, WAITING, WatchedStep, describe_steps, summarize_steps
from niels_cache_assets.artifacts.stored import read_finished
from niels_cache_assets.base.wording import format_count
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.cursors import in_turn
from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.metadata.entries import table, without_empty
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.defs.recording import record_found
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.parts.lease import DONE
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError

PARTS_SENSOR = "finished_parts_sensor"
_SECONDS = 60  # between two ticks
_LOOK_SECONDS = 20.0  # a tick looks at no further data set after this time; Dagster ends a tick after 60 seconds
_RECORD_SECONDS = 40.0  # after this time, the next tick records the rest
_STATE = "built outside of Dagster"
_RECORDED = ("plan", "val_part", "part", "corpus_part")


def finished_parts_sensor(registry: Registry) -> dg.SensorDefinition:
    """Return the sensor.

    Its cursor is {next: the data set to begin with, seen: {key: stamp}, states: {data set: {state: steps}}}.
    The stamp of a part that was new at the last look begins with "new".
    """
    names, graph_at = names_of(registry), cache(partial(graph, registry))  # it knows what the last look has read in a store

    @dg.sensor(
        name=names.name(PARTS_SENSOR),
        minimum_interval_seconds=_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING
        if registry.cluster.model_fields_set or registry.build.store is not None
        else dg.DefaultSensorStatus.STOPPED,
        description="Records plans and parts that were built without Dagster, such as by an array job of Slurm. Each is recorded once. "
        "Observes what is running, whoever started it.",
        required_resource_keys=names.resources,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        limit_parts(context.instance, registry)
        cursor = json.loads(context.cursor or "{}")
        planned, artifacts = keys.datasets_with_plan(registry), graph_at(root_of(context, names))
        known = {*artifacts.keys}
        seen = {key: stamp for key, stamp in cursor.get("seen", {}).items() if key in known}
        states = {name: counts for name, counts in cursor.get("states", {}).items() if name in planned}
        events: list[dg.AssetObservation] = []
        began, looked, recorded = time.monotonic(), 0, 0
        definitions = context.repository_def
        assert definitions is not None  # ticks of the daemon have a repository
        for name in in_turn(planned, cursor, until=began + _LOOK_SECONDS):
            looked += 1
            steps = artifacts.watch(name)
            before, states[name] = states.get(name), summarize_steps(steps)["states"]
            if states[name].get(RUNNING) or states[name] != before:
                events.append(_observation(names.plan, name, steps))
            for step in steps:
                if step.artifact.kind not in _RECORDED or step.stamp is None or seen.get(step.key) == step.stamp:
                    continue
                if time.monotonic() - began >= _RECORD_SECONDS or _is_being_built(context.instance, step.key):
                    continue
                try:
                    meta = read_finished(step.artifact)
                except NielsCacheError:  # it was replaced in the meantime
                    continue
                outcome = Outcome(key=step.key, state="built", meta=meta, directory=step.artifact.directory)
                if seen.get(step.key) != f"new {step.stamp}":
                    seen[step.key] = f"new {step.stamp}"
                    continue
                seen[step.key] = step.stamp
                recorded += record_found(
                    registry, context.instance, definitions.asset_graph, outcome, root=artifacts.root, by=PARTS_SENSOR, state=_STATE
                )
        done = f"Looked at {format_count(looked, 'data set')}; {f'recorded {recorded}' if recorded else 'nothing is new'}"
        cursor |= {"seen": seen, "states": states}
        return dg.SensorResult(asset_events=events, cursor=json.dumps(cursor), skip_reason=None if events else dg.SkipReason(done))

    return sensor


def _observation(plan: dg.AssetKey, name: str, steps: Sequence[WatchedStep]) -> dg.AssetObservation:
    """Return an observation of a plan, with a table of the steps that are neither done nor waiting."""
    rows = [{"step": each.key, "state": each.state, "progress": each.reason} for each in steps if each.state not in (WAITING, DONE)]
    shown = {"steps": describe_steps(steps), "active": table(rows, step="string", state="string", progress="string")}
    return dg.AssetObservation(plan, partition=name, metadata=without_empty(shown))


def _is_being_built(instance: dg.DagsterInstance, key: str) -> bool:
    filters = dg.RunsFilter(tags={keys.PARTITION_TAG: key.partition("/")[2]}, statuses=keys.IN_PROGRESS)
    return bool(instance.get_run_ids(filters, limit=1))
