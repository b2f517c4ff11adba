"""`upstream/pretrain` and `upstream/sft`: what the data sets are read from, as external assets whose data version is upstream's revision.

A revision is observed before a build, never inside it: Dagster reads provenance when a step starts, so a build that observed its own
upstream would be stale at once. What was built before the family was observed for the first time has nothing to compare with, and
stays fresh until it is built again.
"""

from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.defs.keys import UPSTREAM_KEYS, partitions
from niels_cache_assets.registry import Registry
from niels_cache_assets.sources.network import briefly
from niels_cache_runtime.formats import FAMILIES, Family

_DATA_VERSION_TAG = "dagster/data_version"
REVISION = "revision"  # in the metadata of an observation: what meta.json of a cache calls dataset_revision

_DESCRIPTION = """What the {family} data sets are made of: a Hugging Face data set, a folder of notes, files.

Nothing is stored here. The data version of a partition is upstream's revision (a hub commit, or a digest of the files) when it was
last looked at: by `niels-cache build-all` before it builds, or by the job `observe_upstream`. A partition whose revision has
changed since its cache was built shows as unsynced. What a data set is read from stands in niels_cache.toml, `[{family}.<data set>]`.

```python
from niels_cache_assets.registry import load_registry
load_registry().source("<data set>").describe()
```"""


def upstream_specs(registry: Registry) -> list[dg.AssetSpec]:
    return [
        dg.AssetSpec(
            UPSTREAM_KEYS[family],
            partitions_def=partitions(registry, family),
            group_name="upstream",
            kinds={"huggingface", "file"},
            description=_DESCRIPTION.format(family=family),
        )
        for family in FAMILIES
    ]


def observe_revision(registry: Registry, family: Family, name: str) -> Iterator[dg.AssetObservation]:
    """One observation, or none where the data set is switched off or upstream has no revision.

    Asks upstream (network, or a hash of the files). Raises NielsCacheError where it cannot be asked.
    """
    source = registry.source(name)
    with briefly():  # a build asks for longer
        revision = source.revision(registry.pretrain) if source.enabled else None
    if revision is not None:
        yield dg.AssetObservation(
            asset_key=UPSTREAM_KEYS[family], partition=name, tags={_DATA_VERSION_TAG: revision}, metadata={REVISION: revision}
        )
