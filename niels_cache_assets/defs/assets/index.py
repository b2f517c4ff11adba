"""The asset `index/gpt`: the indices of blends in Megatron-LM's order, which exists only with a table [blend.NAME].

There is one partition for each blend. A partition depends on the train shards of the data sets in the blend, and becomes stale when such a
data set is rebuilt with different tokens. If nothing has changed, materializing the partition again is a cache hit, because the name of an
index directory is the hash of everything that determines the content. Dagster has one code version for all partitions of an asset. So if
the settings of one blend change, all blends show as unsynced. A build of an unchanged blend is then a cache hit.
"""

import dagster as dg

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.index import BlendIndex
from niels_cache_assets.base.fingerprint import fingerprint_of, identity_settings
from niels_cache_assets.defs.assets.building import artifact_asset
from niels_cache_assets.defs.keys import mapped, names_of
from niels_cache_assets.project.registry import Registry

_DESCRIPTION = """The order of samples of a blend, numbered as in Megatron-LM. It is built ahead, so that training only maps it.

`index/<hash>/`: document, sample and shuffle index of each member, dataset and dataset sample index of the blend, with the size and
sha256 of each file. The data version is the hash of all of them. `niels-cache prebuild-index NAME` builds the same.

```python
from niels_cache_runtime.megatron import IndexCache, open_blend
blend = open_blend(
    ["cache/pretrain/<data set>/train"], [1.0],
    num_samples=1000, sequence_length=1024, seed=1234, index_cache=IndexCache("cache/index"),
)
```"""


def index_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return the asset, or nothing if no blend can be built."""
    names, built = names_of(registry), registry.blend_keys()
    if not built:
        return []
    settings = fingerprint_of({name: identity_settings(registry.blend[name], "blend") for name in built})
    readers = graph(registry, "").readers("pretrain", "index")
    blends_of = {member: [name for name in blends if name in built] for member, blends in readers.items()}

    return [
        artifact_asset(
            registry,
            "index",
            partitions=built,
            is_configurable=False,
            deps=[mapped(names.splits["pretrain"]["train"], blends_of)],
            kinds={"numpy"},
            code_version=f"{BlendIndex.version}-{settings[:8]}",  # so that changed settings of [blend.*] show as unsynced
            description=_DESCRIPTION,
        )
    ]
