"""The run, or where a corpus comes first the backfill, that a sensor asks for to bring one data set up to date.

A run request names what it is for by its run key, so that Dagster starts it once: a key that a sensor has used is passed over for ever. So
the key names the occasion too, as upstream may come back to what it was before. A backfill has no key: who asks for it remembers.
"""

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset  # how Dagster's own sensors ask for a backfill
from dagster._core.definitions.events import AssetKeyPartitionKey

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.keys import DOCUMENTS, DUPLICATES, KEPT, REPORT, STREAM_OPS, family_keys
from niels_cache_runtime.format.layout import FAMILIES

UPSTREAM_TAG = "niels_cache/upstream"  # of a run or backfill: the version of upstream that it was asked for


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
