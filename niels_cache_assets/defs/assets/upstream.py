"""The external assets `upstream/pretrain` and `upstream/sft`, which stand for the origins of the data sets (the hub, or files).

Each data set is a partition. The data version of a partition consists of upstream's revision and a hash of the data set's resolved
settings. The settings are included because Dagster has one code version for all partitions of an asset. So if the revision or the settings
of one data set change, only its partition becomes stale. A build records an observation of the upstream that it read, unless the last
observation has the same version.
"""

from pathlib import Path

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.cache_identity import cache_identity, is_prepared
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.prepared_corpora import with_corpus_readers
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.chats.templates import find_template
from niels_cache_assets.corpus.identity import identity_of_corpus
from niels_cache_assets.defs.keys import names_of, partitions
from niels_cache_assets.defs.metadata.entries import without_empty
from niels_cache_assets.defs.provenance import DATA_VERSION_TAG, POINTER_TAG, last_materialization, materializations, observations
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.reading.references import revision_with_references
from niels_cache_assets.sources.types import SftSource, SourceWithParts
from niels_cache_runtime.format.layout import FAMILIES

REVISION = "revision"  # key in the metadata of an observation; in the meta.json of a cache, the same value is dataset_revision
_DIGITS = 12
_OBSERVATIONS = 1000  # search only this many of the newest observations of a data set

_DESCRIPTION = """The origin of the {family} data sets: a Hugging Face data set, a folder of notes, or files.

Nothing is stored here. The data version of a partition is upstream's revision (a hub commit or a digest of the files) and a hash of the
data set's settings at the last observation: by a build, by the job `observe_upstream`, or by a sensor. A partition that was
built from another version shows as unsynced. You configure the origin in niels_cache.toml, `[{family}.<data set>]`.

```python
from niels_cache_assets import load_registry
load_registry().source("<data set>").describe()
```"""


def upstream_specs(registry: Registry) -> list[dg.AssetSpec]:
    """Return the specs of the external assets."""
    names = names_of(registry)
    return [
        dg.AssetSpec(
            names.upstream[family],
            partitions_def=partitions(registry, family),
            kinds={"huggingface", "file"},
            description=_DESCRIPTION.format(family=family),
        )
        for family in FAMILIES
    ]


def observe_revision(registry: Registry, name: str, *, root: Path) -> dg.AssetObservation:
    """Return a new observation of a data set's upstream, which contacts upstream over the network or hashes the files.

    If the data set is switched off, upstream is not contacted.

    Raises:
        NielsCacheError: If upstream is not available.
    """
    source = registry.source(name)
    siblings = with_corpus_readers(registry, root)
    revision = source.revision(siblings) if source.enabled else None
    if source.enabled and not is_prepared(source):  # a corpus does not depend on the texts that the key names
        revision = revision_with_references(source, revision, siblings)
    return _observation(registry, name, revision, root=root)


def events_of_read(
    instance: dg.DagsterInstance, registry: Registry, outcome: Outcome, *, root: Path
) -> list[dg.AssetObservation | dg.AssetMaterialization]:
    """Return the events that record the upstream that an artifact was built from. If this is known, there are none.

    The revision is also recorded as a materialization, because the UI counts only materialized partitions. The provenance of a result
    points at the newest materialization in any partition. So a new materialization is needed if the last read or a later observation has a
    different version.
    """
    name, revision = outcome.name, outcome.meta.get("dataset_revision")
    if outcome.kept or outcome.kind not in (*FAMILIES, "corpus", "plan") or outcome.key == "corpus/duplicates":
        return []
    last = last_observation(instance, registry, name)
    if outcome.kind in FAMILIES and name in registry.prepared():
        if last is None:
            return []
        revision = observed_revision(last)  # the build did not contact upstream, so only the settings of the data set may be new
    seen = _observation(registry, name, revision, root=root)
    is_known = last is not None and version_of(last) == version_of(seen)
    if is_known and _was_read_last(instance, seen):
        return []
    read = dg.AssetMaterialization(seen.asset_key, partition=name, metadata=seen.metadata, tags=seen.tags)
    return [read] if is_known else [seen, read]


def _was_read_last(instance: dg.DagsterInstance, seen: dg.AssetObservation) -> bool:
    """Return whether the last build of this partition recorded this version of upstream, and no different version was observed later."""
    last = materializations(instance, seen.asset_key, seen.partition)
    if not last:
        return False
    since = observations(instance, seen.asset_key, seen.partition, limit=_OBSERVATIONS, after_storage_id=last[0].storage_id)
    events = [last[0].asset_materialization, *(each.asset_observation for each in since)]
    return all(event is not None and version_of(event) == version_of(seen) for event in events)


def _observation(registry: Registry, name: str, revision: str | None, *, root: Path) -> dg.AssetObservation:
    source, siblings = registry.source(name), with_corpus_readers(registry, root)
    settings: dict[str, str | None] = {
        "cache": fingerprint_of(cache_identity(registry, source, registry.build, siblings)),
        "corpus": fingerprint_of(identity_of_corpus(registry, name, revision=None, tokenizer_sha256=None)) if is_prepared(source) else None,
    }
    if isinstance(source, SourceWithParts) and source.added:
        plan = PartsPlan(registry=registry, root=root, name=name, source=source, build=registry.build)
        settings["added"] = fingerprint_of(plan.identity(None))
    if isinstance(source, SftSource) and (template := find_template(source.template, registry.tokenizer)) is not None:
        settings["template"] = fingerprint_of(template.identity)
    version = revision or ("no revision" if source.enabled else "switched off")
    return dg.AssetObservation(
        asset_key=names_of(registry).upstream[source.family],
        partition=name,
        tags={DATA_VERSION_TAG: f"{version}+{fingerprint_of(settings)[:_DIGITS]}"},
        metadata=without_empty({REVISION: revision or None, "settings": dg.MetadataValue.json(source.shown_settings())}),
    )


def version_of(event: dg.AssetObservation | dg.AssetMaterialization) -> str:
    """Return the data version in an event, or an empty text if it has none."""
    return (event.tags or {}).get(DATA_VERSION_TAG, "")


def observed_revision(observation: dg.AssetObservation | None) -> str | None:
    """Return the revision of upstream in an observation, or None if there is none."""
    return None if observation is None or REVISION not in observation.metadata else str(observation.metadata[REVISION].value)


def last_observation(
    instance: dg.DagsterInstance, registry: Registry, name: str, *, before: int | None = None
) -> dg.AssetObservation | None:
    """Return the last observation of upstream, or None.

    Args:
        instance: The instance with the records.
        registry: The configuration.
        name: Name of the data set.
        before: Number of an event, before which the observation must be; by default the newest is returned.
    """
    key = names_of(registry).upstream[registry.family_of(name)]
    return next((record.asset_observation for record in observations(instance, key, name, before_storage_id=before)), None)


def last_left_observation(instance: dg.DagsterInstance, registry: Registry, name: str, version: str) -> str:
    """Return the id of the newest observation of another version, which upstream has left, or "0".

    The id changes only when upstream changes. A crash does not change it.
    """
    key = names_of(registry).upstream[registry.family_of(name)]
    records = observations(instance, key, name, limit=_OBSERVATIONS)
    others = (each.storage_id for each in records if each.asset_observation and version_of(each.asset_observation) != version)
    return str(next(others, 0))


def built_versions(instance: dg.DagsterInstance, registry: Registry, name: str) -> set[str | None]:
    """Return the versions of upstream that the cache and the corpus of a data set were last built from, which is normally one.

    The set is empty if Dagster has no record of a cache. The set contains None if upstream was not observed before a build. As in the UI,
    the version comes from the event of upstream that a materialization points at. A materialization also records a version itself, but that
    version may belong to another partition.
    """
    names, family = names_of(registry), registry.family_of(name)
    found: set[str | None] = set()
    for key in [names.meta[family], *([names.documents] if name in registry.prepared() else [])]:
        event = last_materialization(instance, key, name)
        if event is None and key == names.meta[family]:
            return set()
        pointer = ((event.tags or {}) if event else {}).get(POINTER_TAG + names.upstream[family].to_user_string(), "")
        read = last_observation(instance, registry, name, before=int(pointer) + 1) if pointer.isdecimal() else None
        found.add(version_of(read) if read else None)
    return found
