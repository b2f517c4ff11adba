"""Sensors that watch upstream: data sets of the hub by commit, and folders of notes by content. They are off by default.

A change on the hub is recorded as an observation when a sensor sees the change. A change of notes is recorded when their build is requested
(assets/upstream.py). Partitions that were built from a different version then show as unsynced. A build is requested only once for each
version of upstream, even if the build fails. It is requested again if upstream changes and later returns to the same version. To find out
whether anything has changed, a sensor compares upstream with the version that the newest materialization read. One tick of a sensor must
end within 60 seconds, which is Dagster's limit. docs/ui.md gives the cost of a tick.

Dagster never starts a second run with the same run key. So the run key of a request names the data set and the version, and Dagster starts
the run only once. Upstream may return to an earlier version, so the key also contains a number that changes with each change of upstream
(the occasion). If a corpus must be built first, a backfill is requested. A backfill has no key, so the caller must remember which backfills
it requested.
"""

import json
import time
from collections.abc import Sequence

import dagster as dg

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.base.wording import format_count
from niels_cache_assets.defs.assets.upstream import (
    REVISION,
    built_versions,
    last_left_observation,
    last_observation,
    observe_revision,
    version_of,
)
from niels_cache_assets.defs.cursors import in_turn
from niels_cache_assets.defs.finished_parts import finished_parts_sensor
from niels_cache_assets.defs.home.found import remove_markers_of
from niels_cache_assets.defs.keys import corpus_partitions, cuts_of, datasets_with_plan, names_of, partitions
from niels_cache_assets.defs.private import AssetGraphSubset
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.errors import describe_error, log_traceback
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.markdown_folder import NotesSource
from niels_cache_assets.sources.net.retries import retry_at_most
from niels_cache_assets.sources.types import Source
from niels_cache_runtime.format.layout import FAMILIES

UPSTREAM_SENSOR, NOTES_SENSOR = "upstream_revision_sensor", "notes_folder_sensor"
_UPSTREAM_SECONDS = 3600  # at least, between two checks of the hub
_NOTES_SECONDS = 60  # at least, between two checks of the folders
QUERY_SECONDS = 20.0  # after this time, a tick looks at no further data set; one that does not answer takes up to 20 s more
UPSTREAM_TAG = "niels_cache/upstream"  # tag of a run or backfill: the version of upstream for which it was requested


def build_sensors(registry: Registry) -> list[dg.SensorDefinition]:
    """Return all sensors."""
    of_parts = [finished_parts_sensor(registry)] if datasets_with_plan(registry) else []
    return [upstream_revision_sensor(registry), notes_folder_sensor(registry), *of_parts]


def upstream_revision_sensor(registry: Registry) -> dg.SensorDefinition:
    """Return the sensor of the hub. It observes every change, and builds again what was built before, if [dagster] says so."""
    builds = registry.dagster.upstream_builds
    return _sensor(
        registry,
        UPSTREAM_SENSOR,
        [name for name in registry.partition_keys() if _depends_on_hub_commit(registry, registry.source(name))],
        what="data set that is read from the hub at its newest commit",
        seconds=_UPSTREAM_SECONDS,
        description="Asks the hub for the newest commit of every data set that is read from there and not pinned. A changed one shows "
        "as unsynced" + (", and is built again." if builds else "; set upstream_builds = true in [dagster] to build it again as well."),
        observes=True,
        builds=builds,
    )


def notes_folder_sensor(registry: Registry) -> dg.SensorDefinition:
    """Return the sensor of notes. It observes a change when it requests the build, because notes change often."""
    quiet = registry.dagster.notes_quiet_seconds
    return _sensor(
        registry,
        NOTES_SENSOR,
        [name for name in registry.partition_keys() if isinstance(registry.source(name), NotesSource)],
        what="data set that is a folder of notes",
        seconds=_NOTES_SECONDS,
        description=f"Watches the folders of notes. Builds a data set after its folder has changed and then stayed unchanged for {quiet} "
        "seconds (notes_quiet_seconds in [dagster]).",
        quiet=quiet,
    )


def requestable(registry: Registry) -> dg.AssetSelection:
    """Return the selection of all assets that `build_request` may request."""
    names = names_of(registry)
    corpora = [names.documents, names.duplicates, *cuts_of(registry), names.kept, names.report] if registry.prepared() else []
    return dg.AssetSelection.assets(*corpora, *(key for family in FAMILIES for key in names.family_keys(family)))


def build_request(registry: Registry, name: str, version: str, *, occasion: str) -> dg.RunRequest:
    """Return the request to build a data set at this version of upstream.

    The build waits if a different process is building the same data set.

    Args:
        registry: The configuration.
        name: Name of the data set.
        version: Version of upstream.
        occasion: A text that stays the same while upstream stays at this version, and is new if upstream changes and then returns to it.
    """
    names, family, tags = names_of(registry), registry.family_of(name), {UPSTREAM_TAG: version}
    if name not in registry.prepared():
        config = {"ops": {names.stream_ops[family]: {"config": {"wait": True}}}}
        return dg.RunRequest(
            run_key=f"{name}@{version}#{occasion}",
            partition_key=name,
            asset_selection=names.family_keys(family),
            run_config=config,
            tags=tags,
        )
    corpus = corpus_partitions(registry).subset_with_partition_keys([name])
    cache = partitions(registry, family).subset_with_partition_keys([name])
    requested = dict.fromkeys((names.documents, names.kept, names.report), corpus) | dict.fromkeys(names.family_keys(family), cache)
    steps = {"dedup": names.duplicates, **names.cuts}
    unpartitioned = {steps[step] for step in registry.pretrain[name].prepare if step in steps}
    subset = AssetGraphSubset(requested, unpartitioned)  # type: ignore[call-arg]  # mypy takes its __hash__ for a field
    return dg.RunRequest.for_asset_graph_subset(subset, tags)


def _depends_on_hub_commit(registry: Registry, source: Source) -> bool:
    """Return whether the revision of this source is the newest commit of a hub data set, or is derived from such commits."""
    if isinstance(source, HubData):
        return source.follows_the_hub
    members = [registry.pretrain[name] for name in getattr(source, "members", {}) if name in registry.pretrain]
    return any(_depends_on_hub_commit(registry, member) for member in members)


class _SensorTick:
    """One tick of a sensor, with its observed versions, messages and requests."""

    def __init__(self, context: dg.SensorEvaluationContext, registry: Registry) -> None:
        self._context, self._registry = context, registry
        self._root = root_of(context, names_of(registry))
        self.events: list[dg.AssetObservation] = []
        self.requests: list[dg.RunRequest] = []
        self.messages: list[str] = []

    def look(self, name: str) -> dg.AssetObservation | None:
        """Return an observation of a data set's upstream, or add a message and return None if upstream is not available."""
        try:
            return observe_revision(self._registry, name, root=self._root)
        except Exception as error:  # any error of one source
            message = f"{name} could not be checked: {describe_error(error)}"
            self._context.log.warning(message)
            log_traceback(error, self._context.log.info)
            self.messages.append(message)
            return None

    def observe(self, name: str, seen: dg.AssetObservation) -> None:
        """Record what was seen, unless the last observation has the same version."""
        last = last_observation(self._context.instance, self._registry, name)
        if last is not None and version_of(last) == version_of(seen):
            return
        self.events.append(seen)
        remove_markers_of(graph(self._registry, self._root), name)
        same = last is not None and last.metadata.get(REVISION) == seen.metadata.get(REVISION)
        self.add_message(name, "has other settings now" if same else f"is at {seen.metadata[REVISION].value} now")

    def request(self, name: str, version: str, *, occasion: str) -> bool:
        """Request a build of a version. If the build can only fail, add a message and return False."""
        if graph(self._registry, self._root).state("tokenizer").state == "missing":
            self.add_message(name, "needs a build, but there is no tokenizer yet: materialize the tokenizer first")
            return False
        self.requests.append(build_request(self._registry, name, version, occasion=occasion))
        self.add_message(name, "is requested")
        return True

    def add_message(self, name: str, what: str) -> None:
        self._context.log.info(f"{name} {what}")
        self.messages.append(f"{name} {what}")


def _sensor(
    registry: Registry,
    name: str,
    datasets: Sequence[str],
    *,
    what: str,
    seconds: int,
    description: str,
    observes: bool = False,
    builds: bool = True,
    quiet: float = 0,
) -> dg.SensorDefinition:
    """Return a sensor of data sets.

    Its cursor is {next: the next data set to look at, changed: {name: {version, since: the time when the version was first seen, asked:
    whether a build was requested}}}.

    Args:
        registry: The configuration.
        name: Name of the sensor.
        datasets: Names of the data sets to watch.
        what: The kind of data set that is watched, in words.
        seconds: Minimum time between two ticks.
        description: Description for the UI.
        observes: Whether every change is observed, and only data sets that were built before are built again.
        builds: Whether builds are requested.
        quiet: Time in seconds without a change before a build is requested.
    """
    names = names_of(registry)

    @dg.sensor(
        name=names.name(name),
        asset_selection=requestable(registry),
        minimum_interval_seconds=seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=description,
        required_resource_keys=names.resources,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if not datasets:
            return dg.SensorResult(skip_reason=f"There is nothing to watch: there is no {what}.")
        tick, cursor, count = _SensorTick(context, registry), json.loads(context.cursor or "{}"), 0
        changed = cursor["changed"] = {name: seen for name, seen in cursor.get("changed", {}).items() if name in datasets}
        with retry_at_most():
            for name in in_turn(datasets, cursor, until=time.monotonic() + QUERY_SECONDS):
                count += 1
                seen = tick.look(name)
                if seen is None:
                    continue
                version = version_of(seen)
                if observes:
                    tick.observe(name, seen)
                built, now = built_versions(context.instance, registry, name), time.time()
                if built == {version} or (observes and not built):
                    changed.pop(name, None)
                    continue
                if changed.get(name, {}).get("version") != version:
                    changed[name] = {"version": version, "since": now, "asked": False}
                since, left = changed[name]["since"], changed[name]["since"] + quiet - now
                if changed[name]["asked"]:
                    tick.add_message(name, "was requested: it is being built, or the build failed and waits for another change")
                elif left > 0:
                    tick.add_message(name, f"has changed; it will be built after {left:.0f} more seconds without a change")
                elif builds:
                    occasion = str(since) if quiet else last_left_observation(context.instance, registry, name, version)
                    changed[name]["asked"] = tick.request(name, version, occasion=occasion)
                    if changed[name]["asked"] and not observes:
                        tick.observe(name, seen)
        later = f" ({cursor['next']} is next)" if count < len(datasets) else ""
        summary = f"Looked at {format_count(count, 'data set')} of {len(datasets)}{later}"
        return dg.SensorResult(
            run_requests=tick.requests,
            asset_events=tick.events,
            cursor=json.dumps(cursor),
            # the UI shows either the runs or this; the log of the tick has the messages in any case
            skip_reason=None if tick.requests else f"{summary}: {'; '.join(tick.messages) or 'nothing has changed'}.",
        )

    return sensor
