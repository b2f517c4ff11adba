"""Sensors that look at upstream: of the hub's data sets by commit, of folders of notes by what is in them. Off until they are turned on.

What the hub has is observed when it is seen, and notes when their build is asked for (assets/upstream.py), so that partitions built from
something else show as unsynced. For one state of upstream a build is asked for once, even where it fails; again where upstream has left
that state and come back to it. Whether anything has changed is told by the version that the newest materialization read. What a look costs
stands in docs/ui.md; a look must end within the 60 seconds that Dagster gives it.

A run request names what it is for by its run key, so that Dagster starts it once: a key that a sensor has used is passed over for ever. So
the key names the occasion too, as upstream may come back to what it was before. A backfill, which is asked for where a corpus comes first,
has no key: who asks for it remembers.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset  # how Dagster's own sensors ask for a backfill
from dagster._core.definitions.events import AssetKeyPartitionKey

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.assets.upstream import REVISION, built_versions, last_observation, observe_revision, version_of
from niels_cache_assets.defs.keys import DOCUMENTS, DUPLICATES, KEPT, REPORT, STREAM_OPS, UPSTREAM_KEYS, family_keys
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.show.wording import counted
from niels_cache_assets.sources.errors import in_one_line, log_traceback
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.markdown_folder import MarkdownFolder
from niels_cache_assets.sources.net.network import briefly
from niels_cache_assets.sources.roam import Roam
from niels_cache_assets.sources.types import Source
from niels_cache_runtime.format.layout import FAMILIES

UPSTREAM_SENSOR, NOTES_SENSOR = "upstream_revision_sensor", "notes_folder_sensor"
ASKING_SECONDS = 20.0  # no data set is asked for later in a look; one that does not answer takes up to 20 more
UPSTREAM_TAG = "niels_cache/upstream"  # of a run or backfill: the version of upstream that it was asked for
OBSERVATIONS = 1000  # of one data set that are looked through for the last other version


def build_sensors(registry: Registry) -> list[dg.SensorDefinition]:
    return [upstream_revision_sensor(registry), notes_folder_sensor(registry)]


def upstream_revision_sensor(registry: Registry, *, clock: Callable[[], float] = time.monotonic) -> dg.SensorDefinition:
    """Cursor: {next: whose turn it is, wanted: {name: the version that a build was asked for}}."""
    names = [name for name in _watchable(registry) if _asks_the_hub(registry, registry.source(name))]
    builds = registry.dagster.upstream_builds

    def ask(look: _Look, state: dict[str, Any]) -> dg.SensorResult:
        wanted = {name: version for name, version in state.get("wanted", {}).items() if name in names}
        first = names.index(state["next"]) if state.get("next") in names else 0
        began, count = clock(), 0
        with briefly():
            for name in names[first:] + names[:first]:
                if count and clock() - began >= ASKING_SECONDS:
                    break
                count += 1
                version = look.at(name)
                if version is None:
                    continue
                look.observe(name)
                built = look.built(name)
                if wanted.get(name) != version:
                    wanted.pop(name, None)  # it has left the state that was asked for
                if builds and built and built != {version} and name not in wanted and look.request(name, occasion=look.left(name)):
                    wanted[name] = version
        following = names[(first + count) % len(names)]
        later = f" ({following} is next)" if count < len(names) else ""
        whole = f"Asked the hub for {counted(count, 'data set')} of {len(names)}{later}"
        return look.result({"next": following, "wanted": wanted}, whole, quiet="nothing has moved")

    return _sensor(
        UPSTREAM_SENSOR,
        registry,
        ask if names else None,
        of="read from the hub at its newest commit",
        seconds=registry.dagster.upstream_seconds,
        description="Asks the hub for the newest commit of every data set that is read from there and not pinned. One that has moved shows "
        "as unsynced" + (", and is built again." if builds else "; with upstream_builds = true in [dagster] it is built again as well."),
    )


def notes_folder_sensor(registry: Registry, *, clock: Callable[[], float] = time.time) -> dg.SensorDefinition:
    """Cursor: {name: {version, since: when that was first seen, asked: whether it was asked for}} of what is not built as it is."""
    names = [name for name in _watchable(registry) if isinstance(registry.source(name), MarkdownFolder | Roam)]
    quiet = registry.dagster.notes_quiet_seconds

    def compare(look: _Look, before: dict[str, Any]) -> dg.SensorResult:
        waiting: dict[str, Any] = {}
        for name in names:
            version = look.at(name)
            if version is None:
                waiting |= {name: before[name]} if name in before else {}
                continue
            if look.built(name) == {version}:
                continue
            now, seen = clock(), before.get(name, {})
            if seen.get("version") != version:
                seen = {"version": version, "since": now, "asked": False}
            left = seen["since"] + quiet - now
            if seen["asked"]:
                look.say(name, "was asked for: it is being built, or that failed, and then waits for another change")
            elif left > 0:
                look.say(name, f"has changed; it is built when nothing changes for {left:.0f} more seconds")
            elif look.request(name, occasion=str(seen["since"])):
                look.observe(name)
                seen = {**seen, "asked": True}
            waiting[name] = seen
        return look.result(waiting, f"Looked at {counted(len(names), 'folder')} of notes", quiet="nothing has changed")

    return _sensor(
        NOTES_SENSOR,
        registry,
        compare if names else None,
        of="a folder of notes",
        seconds=registry.dagster.notes_seconds,
        description=f"Looks at the folders of notes, and builds a data set when its folder has changed and then been quiet for {quiet} "
        "seconds (notes_quiet_seconds in [dagster]).",
    )


def requestable(registry: Registry) -> dg.AssetSelection:
    """Everything that `build_request` may ask for."""
    corpora = [DOCUMENTS, DUPLICATES, KEPT, REPORT] if registry.prepared() else []
    return dg.AssetSelection.assets(*corpora, *(key for family in FAMILIES for key in family_keys(family)))


def build_request(registry: Registry, name: str, version: str, definitions: dg.RepositoryDefinition, *, occasion: str) -> dg.RunRequest:
    """Build what a data set was made of at this version of upstream. Waits where another process is building the same.

    `occasion`: the same for as long as upstream stays at this version, and another where it left it and came back.
    """
    family, tags = registry.family_of(name), {UPSTREAM_TAG: version}
    if name not in registry.prepared():
        config = {"ops": {STREAM_OPS[family]: {"config": {"wait": True}}}}
        return dg.RunRequest(
            run_key=f"{name}@{version}#{occasion}", partition_key=name, asset_selection=family_keys(family), run_config=config, tags=tags
        )
    wanted = {AssetKeyPartitionKey(key, name) for key in (DOCUMENTS, KEPT, REPORT, *family_keys(family))}
    if name in registry.prepared("dedup"):
        wanted.add(AssetKeyPartitionKey(DUPLICATES))
    return dg.RunRequest.for_asset_graph_subset(AssetGraphSubset.from_asset_partition_set(wanted, definitions.asset_graph), tags)


def _watchable(registry: Registry) -> list[str]:
    return [name for family in FAMILIES for name in registry.partition_keys(family)]


def _asks_the_hub(registry: Registry, source: Source) -> bool:
    """Whether its revision is the newest commit of a hub data set, or made of such."""
    if isinstance(source, HubData):
        return source.follows_the_hub
    members = [registry.pretrain[name] for name in getattr(source, "members", {}) if name in registry.pretrain]
    return any(_asks_the_hub(registry, member) for member in members)


class _Look:
    """One tick: what was seen, what to tell, and what to ask for."""

    def __init__(self, context: dg.SensorEvaluationContext, registry: Registry, cache_root: CacheRoot) -> None:
        self._context, self._registry, self._root = context, registry, cache_root.path
        self._seen: dict[str, dg.AssetObservation] = {}
        self._events: list[dg.AssetObservation] = []
        self._requests: list[dg.RunRequest] = []
        self._said: list[str] = []

    def at(self, name: str) -> str | None:
        """The version that a data set's upstream has now; None where it cannot be asked, which is told."""
        try:
            self._seen[name] = observe_revision(self._registry, name, root=self._root)
        except Exception as error:  # of one source, whatever it is
            said = f"{name} could not be looked at: {in_one_line(error)}"
            self._context.log.warning(said)
            log_traceback(error, self._context.log.info)
            self._said.append(said)
            return None
        return version_of(self._seen[name])

    def built(self, name: str) -> set[str | None]:
        """As `built_versions` has it."""
        return built_versions(self._context.instance, self._registry, name)

    def observe(self, name: str) -> None:
        """Record what was seen, if it is not what was recorded last."""
        last, seen = last_observation(self._context.instance, self._registry, name), self._seen[name]
        if last is not None and version_of(last) == version_of(seen):
            return
        self._events.append(seen)
        same = last is not None and last.metadata.get(REVISION) == seen.metadata.get(REVISION)
        self.say(name, "has other settings now" if same else f"is at {seen.metadata[REVISION].value} now")

    def left(self, name: str) -> str:
        """The number of the newest observation of another version than is seen now: the same until it moves, and after a crash."""
        key, version = UPSTREAM_KEYS[self._registry.family_of(name)], version_of(self._seen[name])
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[name])
        records = self._context.instance.fetch_observations(wanted, limit=OBSERVATIONS).records
        others = (each.storage_id for each in records if each.asset_observation and version_of(each.asset_observation) != version)
        return str(next(others, 0))

    def request(self, name: str, *, occasion: str) -> bool:
        """Ask for a build of what was seen. False, which is told, where it could only fail."""
        if graph(self._registry, self._root).state("tokenizer").state == "missing":
            self.say(name, "is to be built, and there is no tokenizer yet: materialize that first")
            return False
        definitions = self._context.repository_def
        assert definitions is not None  # the daemon's ticks have it
        self._requests.append(build_request(self._registry, name, version_of(self._seen[name]), definitions, occasion=occasion))
        self.say(name, "is asked for")
        return True

    def say(self, name: str, what: str) -> None:
        self._context.log.info(f"{name} {what}")
        self._said.append(f"{name} {what}")

    def result(self, cursor: dict[str, Any], whole: str, *, quiet: str) -> dg.SensorResult:
        """A tick that asks for runs shows these; what there is to tell beside them stands in its log."""
        return dg.SensorResult(
            run_requests=self._requests,
            asset_events=self._events,
            cursor=json.dumps(cursor),
            skip_reason=None if self._requests else f"{whole}: {'; '.join(self._said) or quiet}.",
        )


def _sensor(
    name: str,
    registry: Registry,
    tick: Callable[[_Look, dict[str, Any]], dg.SensorResult] | None,
    *,
    of: str,
    seconds: int,
    description: str,
) -> dg.SensorDefinition:
    """`tick`: given the look and the cursor; None where there is nothing to look at. `of`: what it looks at is."""

    @dg.sensor(
        name=name,
        asset_selection=requestable(registry),
        minimum_interval_seconds=seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=description,
    )
    def sensor(context: dg.SensorEvaluationContext, cache_root: dg.ResourceParam[CacheRoot]) -> dg.SensorResult:
        if tick is None:
            return dg.SensorResult(skip_reason=f"There is nothing to look at: no data set here is {of}.")
        return tick(_Look(context, registry, cache_root), json.loads(context.cursor or "{}"))

    return sensor
