"""`pretrain/*`: token shards of plain text, one partition per data set."""

from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.assets.family import family_specs, stream_dataset
from niels_cache_assets.defs.config import PretrainConfig
from niels_cache_assets.defs.keys import (
    DOCUMENTS,
    KEPT,
    STREAM_OPS,
    TOKENIZER,
    UPSTREAM_KEYS,
    partitions,
)
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.show.training_code import loader_code
from niels_cache_runtime.format.layout import Split

_SHARDS = """The {split} split of a data set: headerless uint16 tokens in shards, every document followed by one EOT.

`pretrain/<data set>/{split}/shard_*.bin`, with `{split}_doc_ends.npy` (where each document ends) and `{split}_documents.parquet`
(where each came from) beside the folder. The data version is the sha256 over its token and doc_ends files.
[Its checks](/assets/pretrain/meta_json?view=checks) are with `meta_json`; plots, samples and what opens the data set are with every
output, first in the metadata of a partition.

```python
{code}
```"""

_META = """The commit record of a data set: counts, settings, revision of upstream, sha256 of every file.

`pretrain/<data set>/meta.json`, written last: what has none is not finished. The same input, settings and tokenizer give the same
bytes. [Its checks](/assets/pretrain/meta_json?view=checks) read the whole cache again; `caches_in_sync` lists all data sets.

```python
{code}
```"""


def _described(split: Split, text: str = _SHARDS) -> str:
    return text.format(split=split, code=loader_code(f'"cache/pretrain/<data set>/{split}"', "pretrain", T=1024, B=8))


def pretrain_assets(registry: Registry) -> dg.AssetsDefinition:
    above = [dg.AssetDep(TOKENIZER), *_inputs(registry)]

    @dg.multi_asset(
        name=STREAM_OPS["pretrain"],
        specs=family_specs("pretrain", train=_described("train"), val=_described("val"), meta=_described("train", _META), above=above),
        partitions_def=partitions(registry, "pretrain"),
        description="Stream one data set through the tokenizer into train and val shards, in one pass.",
    )
    def stream_pretrain_dataset(
        context: dg.AssetExecutionContext,
        config: PretrainConfig,
        cache_root: dg.ResourceParam[CacheRoot],
        progress_sink: dg.ResourceParam[ProgressSink],
    ) -> Iterator[dg.MaterializeResult]:
        yield from stream_dataset(
            context,
            registry,
            "pretrain",
            run_settings=config.run_settings(),
            force=config.force,
            wait=config.wait,
            cache_root=cache_root,
            sink=progress_sink,
        )

    return stream_pretrain_dataset


def _inputs(registry: Registry) -> list[dg.AssetDep]:
    """Upstream, which knows a data set's settings (what is read from a corpus has budgets too), and its corpus if it has one.

    Its own drop list counts, not all of corpus/duplicates (see assets/corpus.py).
    """
    upstream = dg.AssetDep(UPSTREAM_KEYS["pretrain"])
    if not registry.prepared():
        return [upstream]
    readers, buildable = graph(registry, "").readers("corpus", "pretrain"), set(registry.partition_keys("pretrain"))
    mapping = dg.StaticPartitionMapping(
        {name: [each for each in readers.get(name, ()) if each in buildable] for name in registry.prepared()}
    )
    return [upstream, *(dg.AssetDep(asset, partition_mapping=mapping) for asset in (DOCUMENTS, KEPT))]
