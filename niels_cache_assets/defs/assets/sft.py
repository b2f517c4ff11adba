"""`sft/*`: tokens and offsets of conversations, one partition per data set."""

from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.assets.family import family_specs, stream_dataset
from niels_cache_assets.defs.config import SftConfig
from niels_cache_assets.defs.keys import STREAM_OPS, TOKENIZER, UPSTREAM_KEYS, partitions
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.show.training_code import loader_code
from niels_cache_runtime.format.layout import Split

_PAIR = """The {split} split of a data set of conversations: tokens and the start of each example.

`sft/<data set>/{split}_tokens.bin` (headerless uint16; every message is its role's sentinel, its text, EOT) and
`sft/<data set>/{split}_idx.npy` (int64 offsets), with `{split}_examples.parquet` (where each came from). The data version is the sha256
over tokens and offsets.
[Its checks](/assets/sft/meta_json?view=checks) are with `meta_json`; plots, samples and what opens the data set are with every output,
first in the metadata of a partition.

```python
{code}
```"""

_META = """The commit record of a data set: counts, settings, revision of upstream, sha256 of every file.

`sft/<data set>/meta.json`, written last: what has none is not finished. The same input, settings and tokenizer give the same bytes.
[Its checks](/assets/sft/meta_json?view=checks) read the whole cache again; `caches_in_sync` lists all data sets.

```python
{code}
```"""


def _described(split: Split, text: str = _PAIR) -> str:
    return text.format(split=split, code=loader_code(f'"cache/sft/<data set>/{split}"', "sft", T=1024, B=8))


def sft_assets(registry: Registry) -> dg.AssetsDefinition:
    above = [dg.AssetDep(TOKENIZER), dg.AssetDep(UPSTREAM_KEYS["sft"])]

    @dg.multi_asset(
        name=STREAM_OPS["sft"],
        specs=family_specs("sft", train=_described("train"), val=_described("val"), meta=_described("train", _META), above=above),
        partitions_def=partitions(registry, "sft"),
        description="Stream one data set through the tokenizer into train and val pairs, in one pass.",
    )
    def stream_sft_dataset(
        context: dg.AssetExecutionContext,
        config: SftConfig,
        cache_root: dg.ResourceParam[CacheRoot],
        progress_sink: dg.ResourceParam[ProgressSink],
    ) -> Iterator[dg.MaterializeResult]:
        yield from stream_dataset(
            context,
            registry,
            "sft",
            run_settings=config.run_settings(),
            force=config.force,
            wait=config.wait,
            cache_root=cache_root,
            sink=progress_sink,
        )

    return stream_sft_dataset
