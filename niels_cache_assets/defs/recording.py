"""What Dagster records of an artifact: the metadata and the data version of its assets, the same for a run and for what is only found."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.base.wording import SHORT_SHA256, file_size, format_count
from niels_cache_assets.defs.assets.upstream import events_of_read, version_of
from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.metadata.builds import (
    STATE,
    Metadata,
    family_metadata,
    part_metadata,
    split_version,
    state_of,
    tokenizer_metadata,
)
from niels_cache_assets.defs.metadata.corpora import (
    corpus_part_metadata,
    cuts_metadata,
    documents_metadata,
    duplicates_metadata,
    kept_metadata,
    report_metadata,
    search_metadata,
    suffixes_metadata,
)
from niels_cache_assets.defs.metadata.entries import json_entry, table, without_empty
from niels_cache_assets.defs.provenance import FOUND_TAG, is_recorded, last_materialization, result_tags
from niels_cache_assets.parts.plan import Plan
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.excluding import exclude_identity
from niels_cache_assets.sources.types import Source
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.meta import build_id

_EXCLUDE = "exclude"  # key in the metadata of a plan: sha256 over the ids to leave out
_GROUPS = "groups"  # key in the metadata of a plan, if its data version alone does not show them
_METADATA_OF = {
    "corpus": documents_metadata,
    "corpus/duplicates": duplicates_metadata,
    "repeats": cuts_metadata,
    "corpus_part": corpus_part_metadata,
    "hashes": search_metadata,
    "range": search_metadata,
    "val_part": part_metadata,
    "part": part_metadata,
    "suffixes": suffixes_metadata,
}


class AssetRecord(NamedTuple):
    """What is recorded of one asset: its metadata, of which empty entries are left out, and its data version."""

    asset: dg.AssetKey
    metadata: Metadata
    version: str

    def result(self) -> dg.MaterializeResult:
        """Return the result of a step."""
        return dg.MaterializeResult(self.asset, metadata=without_empty(self.metadata), data_version=dg.DataVersion(self.version))

    def event(
        self, instance: dg.DagsterInstance, asset_graph: Any, partition: str | None, *, by: str | None = None
    ) -> dg.AssetMaterialization:
        """Return the event that a run would record now, with a tag that says what records it instead, if that is given."""
        tags = result_tags(instance, asset_graph, self.asset, partition, self.version)
        tags |= {FOUND_TAG: by} if by else {}
        return dg.AssetMaterialization(self.asset, partition=partition, metadata=without_empty(self.metadata), tags=tags)


def records_of(
    registry: Registry, instance: dg.DagsterInstance, outcome: Outcome, *, draw: bool, source: Source | None = None
) -> list[AssetRecord]:
    """Return the records of an artifact, in topological order: three for a cache, and one for everything else.

    Args:
        registry: The configuration.
        instance: The instance with the recorded plans.
        outcome: The outcome of the artifact.
        draw: Whether to draw plots.
        source: The table of a data set with the settings of this run; by default that of the registry.

    Raises:
        NielsCacheError: If a file cannot be read.
    """
    meta, names = outcome.meta, names_of(registry)
    asset, _ = names.recorded_as(outcome.key)
    if outcome.kind in FAMILIES:
        source = source or registry.source(outcome.name)
        shown = family_metadata(registry, outcome, source, draw=draw)
        splits = [AssetRecord(key, shown[split], split_version(meta, split)) for split, key in names.splits[outcome.family].items()]
        return [*splits, AssetRecord(asset, shown[None], build_id(meta) or "")]
    if outcome.key == "tokenizer":
        return [AssetRecord(asset, tokenizer_metadata(outcome, draw=draw), meta["sha256"])]
    if outcome.kind == "report":
        return [AssetRecord(asset, report_metadata(outcome, draw=draw), meta.get("meta_sha256", ""))]
    if outcome.kind == "plan":
        return [AssetRecord(asset, *_plan_record(registry, instance, outcome))]
    if outcome.kind == "index":
        return [AssetRecord(asset, _index_metadata(registry, outcome), meta["hash"])]
    metadata_of = _METADATA_OF[outcome.key if outcome.key in _METADATA_OF else outcome.kind]
    return [AssetRecord(asset, metadata_of(outcome), meta.get("content_sha256", ""))]


def kept_record(registry: Registry, name: str, *, root: Path) -> AssetRecord:
    """Return the record of corpus/kept, which is recorded with the report of a corpus.

    Raises:
        NielsCacheError: If the corpus or its drop list is not current.
    """
    prepared = open_prepared(registry, name, root=root)
    return AssetRecord(names_of(registry).kept, kept_metadata(prepared), fingerprint_of(prepared.identity()))


def record_found(
    registry: Registry,
    instance: dg.DagsterInstance,
    asset_graph: Any,
    outcome: Outcome,
    *,
    root: Path,
    by: str,
    state: str | None = None,
) -> bool:
    """Record an artifact that was built without a run of Dagster, or in another home, and the upstream that it was built from.

    What the newest events record already is not recorded again.

    Args:
        registry: The configuration.
        instance: The instance to record it in.
        asset_graph: The asset graph of the definitions.
        outcome: The outcome of the artifact.
        root: The cache root.
        by: What records it, for a tag of the events.
        state: What the metadata says instead of the state of the outcome.

    Returns:
        Whether the artifact was recorded.
    """
    partition = names_of(registry).recorded_as(outcome.key)[1]

    def records(*, draw: bool) -> Iterator[AssetRecord]:
        if outcome.kind == "report":
            yield kept_record(registry, outcome.name, root=root)
        for record in records_of(registry, instance, outcome, draw=draw):
            yield record._replace(metadata={**record.metadata, STATE: state}) if state else record

    for read in events_of_read(instance, registry, outcome, root=root):
        instance.report_runless_asset_event(read)
    found = ((last_materialization(instance, each.asset, partition), each) for each in records(draw=False))
    if all(is_recorded(last, each.event(instance, asset_graph, partition)) for last, each in found):
        return False
    for record in records(draw=registry.dagster.plots):
        instance.report_runless_asset_event(record.event(instance, asset_graph, partition, by=by))
    return True


def _plan_record(registry: Registry, instance: dg.DagsterInstance, outcome: Outcome) -> tuple[Metadata, str]:
    """Return the metadata and the data version of the plan of a data set.

    The version is unchanged as long as the data set only grows, and changes with any planned part, and with the ids that `exclude` names.

    Growth leaves the existing parts as they are, so it must not make their partitions stale. Dagster has one version for all parts of a
    data set. So if the files of one table `added` or the ids of `exclude` change, all of its parts are stale, and those that are current
    are cache hits.
    """
    plan, excluded = Plan.of(outcome.meta), exclude_identity(registry.pretrain[outcome.name].exclude).get(_EXCLUDE)
    groups = [group.fingerprint for group in plan.groups]  # the first parts, and those of each table `added`
    of_all = fingerprint_of({"groups": groups, **({_EXCLUDE: excluded} if excluded else {})})
    version, before, excluded_before = _recorded(last_materialization(instance, names_of(registry).plan, outcome.name))
    if not version:
        version = of_all if excluded else groups[0]
    elif excluded != excluded_before or groups[: len(before)] != before:
        version = groups[0] if before == [version] and len(groups) == 1 and not excluded else of_all
    listed = [file for group in plan.groups for file in group.listed]
    files = f"{format_count(len(listed), 'file')} of {file_size(sum(file.bytes for file in listed))}"
    metadata = {
        **state_of(outcome),
        "contents": f"{files} in {format_count(len(plan.parts), 'part')}",
        _GROUPS: dg.MetadataValue.json(groups) if groups != [version] else None,
        _EXCLUDE: excluded,
    }
    return metadata, version


def _recorded(event: dg.AssetMaterialization | None) -> tuple[str, list[str], str | None]:
    """Return the data version of a recorded plan, the fingerprints of its groups, and the sha256 over the ids that `exclude` named.

    For a part, only the data version is recorded.
    """
    if event is None:
        return "", [], None
    version, groups, excluded = version_of(event), event.metadata.get(_GROUPS), event.metadata.get(_EXCLUDE)
    listed = groups.value if isinstance(groups, dg.JsonMetadataValue) and isinstance(groups.value, list) else [version]
    return version, [str(each) for each in listed], None if excluded is None else str(excluded.value)


def _index_metadata(registry: Registry, outcome: Outcome) -> Metadata:
    indices = outcome.meta["indices"]
    rows = [
        {"index": index.label, "samples": index.samples, "size": file_size(index.bytes), "hash": index.hash[:SHORT_SHA256]}
        for index in indices
    ]
    samples = indices[-1].samples
    return {
        **state_of(outcome),
        "contents": f"{file_size(sum(index.bytes for index in indices))}: {format_count(samples, 'sample')}",
        "samples": samples,
        "bytes": sum(index.bytes for index in indices),
        "indices": table(rows),
        "settings": json_entry(registry.blend[outcome.name].model_dump(mode="json")),
        "hash": outcome.meta["hash"],
        "dagster/uri": indices[-1].directory.parent.absolute().as_uri(),
    }
