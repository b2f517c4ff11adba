"""The assets `index/*`: the indices of blends in Megatron-LM's order, and those of caches for `niels-cache find`.

`index/gpt` exists only with a table [blend.NAME]. There is one partition for each blend. A partition depends on the train shards of the
data sets in the blend, and becomes stale when such a data set is rebuilt with different tokens. If nothing has changed, materializing the
partition again is a cache hit, because the name of an index directory is the hash of everything that determines the content. Dagster has
one code version for all partitions of an asset. So if the settings of one blend change, all blends show as unsynced. A build of an
unchanged blend is then a cache hit.

`index/suffixes` exists only with data sets in `index` of [find], which are its partitions. A partition depends on the cache, and is a cache
hit if the cache was rebuilt with the same tokens.
"""

import dagster as dg

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.index import BlendIndex
from niels_cache_assets.artifacts.suffixes import SuffixIndex
from niels_cache_assets.base.fingerprint import fingerprint_of, identity_settings
from niels_cache_assets.defs.assets.building import artifact_asset
from niels_cache_assets.defs.keys import mapped, names_of
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.format.layout import FAMILIES

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


_SUFFIXES = """The positions of a cache's tokens, sorted by the tokens that follow, in which `niels-cache find` finds a phrase.

`suffixes/<data set>/`: `<split>_<range>.bin` (uint32), `<split>_keys.bin` and `meta.json`, about 4 bytes for each token. It has no copy of
the tokens.

```python
from niels_cache_inspection.find.index import open_index
open_index("cache/<family>/<data set>").count("train", [17, 3, 9])
```"""


def index_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return those of both assets that have partitions."""
    return [*_blends(registry), *_suffixes(registry)]


def _suffixes(registry: Registry) -> list[dg.AssetsDefinition]:
    names, indexed = names_of(registry), registry.indexed()
    read = {family: [name for name in registry.partition_keys(family) if name in indexed] for family in FAMILIES}
    if not indexed:
        return []
    return [
        artifact_asset(
            registry,
            "suffixes",
            partitions=indexed,
            deps=[mapped(names.meta[family], found) for family, found in read.items() if found],
            kinds={"numpy"},
            code_version=f"{SuffixIndex.version}-{registry.find.range_tokens}",
            description=_SUFFIXES,
        )
    ]


def _blends(registry: Registry) -> list[dg.AssetsDefinition]:
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
