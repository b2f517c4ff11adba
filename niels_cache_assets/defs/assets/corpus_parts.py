"""`corpus/parts`, `corpus/hashes`, `corpus/ranges`: what machines can share before tokenization.

`corpus/parts` exists if the corpus of a data set is in parts: one partition for each part, which `corpus/documents` joins. `corpus/hashes`
and `corpus/ranges` exist if [dedup] has several `ranges`: one partition for each range, and `corpus/duplicates` chooses by all of them. The
steps of parts and ranges are those of `pretrain/parts` (assets/parts.py): a child builds each, here or on another machine ([cluster]).
"""

from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.duplicates import CODE_VERSION
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assets.parts import build_partition, built, result_of, to_parts
from niels_cache_assets.defs.config import CorpusConfig, PartConfig
from niels_cache_assets.defs.metadata.builds import Metadata, state_of
from niels_cache_assets.defs.metadata.entries import without_empty
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.show.contents import total_bytes
from niels_cache_assets.show.wording import counted, file_size

_GROUP = "corpus"

_PARTS = """One part of a corpus: its files, cleaned and signed.

`corpus/.parts/<data set>/part-00000`. The partition is the data set and the part. `corpus/documents` joins the parts.

```python
import json
json.load(open("cache/corpus/.parts/<data set>/part-00000/meta.json"))["documents"]
```"""

_HASHES = """The hashes of all documents that are searched for duplicates, divided into ranges.

`corpus/.parts/.ranges/hashes`, until the drop lists are finished.

```python
import json
json.load(open("cache/corpus/.parts/.ranges/hashes/meta.json"))["documents"]
```"""

_RANGES = """The documents that share a hash, for one range of hashes.

`corpus/.parts/.ranges/range-00000`, until the drop lists are finished. A job for a range takes at most 50 bytes of memory for each document
of its range.

```python
import json
json.load(open("cache/corpus/.parts/.ranges/range-00000/meta.json"))["ranges"]
```"""


def corpus_parts_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return the asset of the parts if a corpus is in parts, and those of hashes and ranges if the search is in ranges."""
    parts = [_parts(registry)] if registry.corpora_in_parts() else []
    return [*parts, *([_hashes(registry), _ranges(registry)] if registry.search_ranges else [])]


def _parts(registry: Registry) -> dg.AssetsDefinition:
    of_plan = keys.parts_of_corpora(registry)

    @dg.asset(
        key=keys.CORPUS_PARTS,
        deps=[dg.AssetDep(keys.PLAN, partition_mapping=to_parts(of_plan))],
        partitions_def=dg.StaticPartitionsDefinition([part for parts in of_plan.values() for part in parts]),
        group_name=_GROUP,
        kinds={"parquet"},
        code_version=Corpus.version,
        pool=keys.PARTS_POOL,
        output_required=False,
        description=_PARTS,
    )
    def build_corpus_part(
        context: dg.AssetExecutionContext,
        config: PartConfig,
        cache_root: dg.ResourceParam[CacheRoot],
        progress_sink: dg.ResourceParam[ProgressSink],
    ) -> Iterator[dg.MaterializeResult]:
        artifact = graph(registry, cache_root.path).corpus_part(context.partition_key)
        outcome = build_partition(context, artifact, config, progress_sink, keys.CORPUS_PARTS)
        if outcome is not None:
            yield result_of(outcome, corpus_part_metadata(outcome))

    return build_corpus_part


def _hashes(registry: Registry) -> dg.AssetsDefinition:
    @dg.asset(
        key=keys.HASHES,
        deps=[dg.AssetDep(keys.DOCUMENTS, partition_mapping=keys.searched(registry))],
        group_name=_GROUP,
        kinds={"numpy"},
        code_version=CODE_VERSION,
        description=_HASHES,
    )
    def hash_signatures(
        context: dg.AssetExecutionContext,
        config: CorpusConfig,
        cache_root: dg.ResourceParam[CacheRoot],
        progress_sink: dg.ResourceParam[ProgressSink],
    ) -> dg.MaterializeResult:
        outcome = built(context, graph(registry, cache_root.path).duplicates().hashes(), config, progress_sink, None)
        return result_of(outcome, search_metadata(outcome))

    return hash_signatures


def _ranges(registry: Registry) -> dg.AssetsDefinition:
    @dg.asset(
        key=keys.RANGES,
        deps=[keys.HASHES],
        partitions_def=dg.StaticPartitionsDefinition(keys.ranges(registry)),
        group_name=_GROUP,
        kinds={"numpy"},
        code_version=CODE_VERSION,
        pool=keys.PARTS_POOL,
        output_required=False,
        description=_RANGES,
    )
    def link_range(
        context: dg.AssetExecutionContext,
        config: PartConfig,
        cache_root: dg.ResourceParam[CacheRoot],
        progress_sink: dg.ResourceParam[ProgressSink],
    ) -> Iterator[dg.MaterializeResult]:
        artifact = graph(registry, cache_root.path).hash_range(context.partition_key)
        outcome = build_partition(context, artifact, config, progress_sink, keys.RANGES)
        if outcome is not None:
            yield result_of(outcome, search_metadata(outcome))

    return link_range


def corpus_part_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of a part of a corpus: a few lines, because there may be thousands of parts."""
    meta = outcome.meta
    documents = meta["documents"]
    said = f"{file_size(meta['bytes']['after'])}: {counted(documents['kept'], 'document')} of {documents['read']:,}"
    return without_empty(
        {
            **state_of(outcome),
            "contents": said,
            "documents": documents["kept"],
            "dropped": ", ".join(f"{reason} {count:,}" for reason, count in sorted(meta["dropped"].items())) or None,
            "meta_sha256": meta["meta_sha256"],
            "dagster/uri": outcome.directory.absolute().as_uri(),
        }
    )


def search_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of the hashes or of a range."""
    searched = counted(outcome.meta["documents"]["searched"], "document")
    return {
        **state_of(outcome),
        "contents": f"{file_size(total_bytes(outcome.meta['files']))}: {searched} in {outcome.meta['ranges']} ranges",
        "meta_sha256": outcome.meta["meta_sha256"],
        "dagster/uri": outcome.directory.absolute().as_uri(),
    }
