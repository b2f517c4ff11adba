"""A sensor that records plans and parts that were built without Dagster, for example by an array job.

It is on by default with [cluster] or a store.

Each finished part is recorded once, with the metadata and the data version that its step would record. A tick looks at every part on the
disk, which is one system call for each; in a store, it lists the records. It compares only parts that have changed since the last tick.
Dagster's records determine
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
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import NamedTuple

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG  # no public name
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES  # no public name
from dagster._core.storage.tags import PARTITION_NAME_TAG

from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.parts.part import ValPart
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.watch import RUNNING, WAITING, describe_steps, summarize_steps
from niels_cache_assets.artifacts.stored import StorePlace, in_store, store_of
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
from niels_cache_assets.parts.store import RECORDS, record_of
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta

PARTS_SENSOR = "finished_parts_sensor"
_SECONDS = 60  # between two ticks
_SCAN_SECONDS = 20.0  # a tick looks at no further part after this time; Dagster ends a tick after 60 seconds
_STATE = "built outside of Dagster"


class _Candidate(NamedTuple):
    """Something that may be finished. `id` is its name in the cursor."""

    id: str
    asset: dg.AssetKey
    partition: str
    artifact: Artifact


def finished_parts_sensor(registry: Registry) -> dg.SensorDefinition:
    """Return the sensor.

    Its cursor is {next: the next id to look at, seen: {id: stamp}, pending: {id: stamp}, states: {data set: {state: steps}},
    watch: the next data set to observe}. A stamp is the inode and the time of a record. Pending are parts that were new at the last look.
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
        pending: dict[str, str] = state.get("pending", {})
        problems: list[str] = []
        artifacts, stamps = graph_at(cache_root.path), cache(partial(_stamps_in_store, registry))
        candidates = [*_candidates(artifacts, problems)]
        ids = [candidate.id for candidate in candidates]
        first = ids.index(state["next"]) if state.get("next") in ids else 0
        events: list[dg.AssetMaterialization | dg.AssetObservation] = []
        began, count = time.monotonic(), 0
        for candidate in candidates[first:] + candidates[:first]:
            if count and time.monotonic() - began >= _SCAN_SECONDS:
                break
            count += 1
            stamp = _stamp(candidate, stamps)
            if stamp is None or seen.get(candidate.id) == stamp or _is_being_built(context.instance, candidate):
                continue
            meta = _current(candidate.artifact)
            if meta is None:
                continue
            version = _version(context.instance, candidate, meta)
            is_new = not _is_recorded(context.instance, candidate, meta, version)
            if pending.get(candidate.id) != stamp and is_new:
                pending[candidate.id] = stamp
                continue
            pending.pop(candidate.id, None)
            if is_new:
                events.append(_event(candidate, meta, version))
            seen[candidate.id] = stamp
        states: dict[str, Mapping[str, int]] = state.get("states", {})
        names = keys.datasets_with_plan(registry)
        start = names.index(state["watch"]) if state.get("watch") in names else 0
        watched = 0
        for name in names[start:] + names[:start]:
            if watched and time.monotonic() - began >= 2 * _SCAN_SECONDS:
                break
            watched += 1
            steps = artifacts.watch(name)
            before = states.get(name)
            states[name] = summarize_steps(steps)["states"]
            if states[name].get(RUNNING) or states[name] != before:
                rows = [
                    {"step": each.key, "state": each.state, "progress": each.reason} for each in steps if each.state not in (WAITING, DONE)
                ]
                shown = without_empty(
                    {"steps": describe_steps(steps), "active": table(rows, step="string", state="string", progress="string")}
                )
                events.append(dg.AssetObservation(keys.PLAN, partition=name, metadata=shown))
        cursor = {
            "next": ids[(first + count) % len(ids)] if ids else None,
            "states": {name: states[name] for name in names if name in states},
            "watch": names[(start + watched) % len(names)] if names else None,
            **{key: {name: known[name] for name in ids if name in known} for key, known in (("seen", seen), ("pending", pending))},
        }
        summary = f"Looked at {format_count(count, 'part')}; recorded {len(events)}"
        return dg.SensorResult(
            asset_events=events,
            cursor=json.dumps(cursor),
            skip_reason=dg.SkipReason("; ".join([summary, *problems])) if not events else None,
        )

    return sensor


def _candidates(all_artifacts: Graph, problems: list[str]) -> Iterator[_Candidate]:
    """Yield the plan, the val part and the parts of every data set and corpus in parts. Add a line to `problems` if there is no plan."""
    for name in keys.datasets_with_plan(all_artifacts.registry):
        yield _Candidate(f"plan/{name}", keys.PLAN, name, all_artifacts.plan(name))
        for each in all_artifacts.joined(name):
            try:
                members: list[Artifact] = [*each.members()]
            except NielsCacheError as error:  # no plan, no tokenizer or no corpus yet, or those of other settings
                problems.append(str(error))
                continue
            for member in members:
                if isinstance(member, ValPart):
                    yield _Candidate(member.key, keys.VAL_PART, name, member)
                else:
                    asset = keys.CORPUS_PARTS if isinstance(member, Corpus) else keys.PARTS
                    yield _Candidate(member.key, asset, f"{name}/{member.directory.name}", member)


def _stamps_in_store(registry: Registry, name: str) -> dict[str, str | None]:
    """Return the ETag of each record of a data set."""
    store = store_of(registry, "pretrain", name)
    return {} if store is None else {each.key: each.e_tag for each in store.list(RECORDS)}


def _stamp(candidate: _Candidate, stamps: Callable[[str], Mapping[str, str | None]]) -> str | None:
    """Return a value that changes when the record of a build is replaced, or None if there is no record."""
    artifact = candidate.artifact
    if (place := _in_store(artifact)) is not None:
        return stamps(candidate.partition.partition("/")[0]).get(record_of(place.folder))
    assert artifact.record is not None
    try:
        status = os.stat(artifact.directory / artifact.record)
    except OSError:
        return None
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}"


def _in_store(artifact: Artifact) -> StorePlace | None:
    """Return the place of a part in the store, or None for others: a plan is copied to this machine by each look at its data set."""
    return place if isinstance(place := in_store(artifact), StorePlace) and place.kind != "plan" else None


def _current(artifact: Artifact) -> Meta | None:
    """Return the record of a build if the build is current, or None."""
    try:
        return artifact.current() if (place := _in_store(artifact)) is None else place.finished(copies=False)
    except NielsCacheError:
        return None


def _is_being_built(instance: dg.DagsterInstance, candidate: _Candidate) -> bool:
    filters = dg.RunsFilter(tags={PARTITION_NAME_TAG: candidate.partition}, statuses=[*IN_PROGRESS_RUN_STATUSES])
    return bool(instance.get_run_ids(filters, limit=1))


def _is_recorded(instance: dg.DagsterInstance, candidate: _Candidate, meta: Meta, version: str) -> bool:
    last = last_materialization(instance, candidate.asset, candidate.partition)
    if last is None:
        return False
    if isinstance(candidate.artifact, PartsPlan):
        return is_recorded_plan(last, meta, version, list_of_ids(candidate.artifact.source))
    return materialized_version(last) == version


def _version(instance: dg.DagsterInstance, candidate: _Candidate, meta: Meta) -> str:
    if isinstance(candidate.artifact, PartsPlan):
        return plan_version(instance, candidate.partition, meta, list_of_ids(candidate.artifact.source))
    return str(meta["content_sha256"])


def _event(candidate: _Candidate, meta: Meta, version: str) -> dg.AssetMaterialization:
    artifact = candidate.artifact
    outcome = Outcome(key=artifact.key, state="built", meta=meta, directory=artifact.directory)
    if isinstance(artifact, PartsPlan):
        metadata = plan_metadata(outcome, version, list_of_ids(artifact.source))
    else:
        metadata = (corpus_part_metadata if candidate.asset == keys.CORPUS_PARTS else part_metadata)(outcome)
    tags = {DATA_VERSION_TAG: version}
    return dg.AssetMaterialization(candidate.asset, partition=candidate.partition, metadata={**metadata, STATE: _STATE}, tags=tags)
