"""The assets `corpus/*`, which are the steps before tokenization, for data sets with `prepare`. Without such a data set, these assets do
not exist.

`duplicates` is one asset, because the search covers all data sets at once. If caches depended on `duplicates`, a change of any drop list
(list of the duplicates of a data set) would make all caches stale. So caches depend on `kept`, and `kept` depends on `duplicates`. For each
data set, the data version of `kept` covers only the text that training will read.
"""

from dataclasses import replace

import dagster as dg

from niels_cache_assets.artifacts.corpus import Corpus, JoinedCorpus
from niels_cache_assets.artifacts.corpus_report import CorpusReport
from niels_cache_assets.artifacts.duplicates import Duplicates
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.identity import dedup_identity, dedup_order
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assets.upstream import observe_what_was_read
from niels_cache_assets.defs.config import CorpusConfig
from niels_cache_assets.defs.metadata.corpora import documents_metadata, duplicates_metadata, kept_metadata, report_metadata
from niels_cache_assets.defs.progress import BuildReporter, ProgressSink, readable_failures, told
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.defs.turns import StreamPlace

_GROUP = "corpus"

_DOCUMENTS = """The cleaned documents of a data set, and their signatures.

`corpus/<data set>/documents_*.parquet` (zstd), `rejected.parquet` (50 examples for each reason), `digests.npy` and `signatures.npy` (for
duplicates), `meta.json`. The data version is the hash of the documents. The result is the same on any number of cores.

```python
import pyarrow.parquet as pq
pq.read_table("cache/corpus/<data set>/rejected.parquet").to_pylist()[:5]
```"""

_DUPLICATES = """The documents that are dropped as exact or near duplicates, across data sets and splits, with the reason and similarity.

`duplicates/<data set>.parquet`, one drop list for each data set with `prepare = [..., "dedup"]`. One search covers all data sets. The first
document in the order of [dedup] priority stays. A different threshold repeats the search, but not the cleaning.

```python
import pyarrow.parquet as pq
pq.read_table("cache/duplicates/<data set>.parquet").to_pylist()[:5]
```"""

_KEPT = """The documents for the tokenizer: those of the corpus, without those on the drop list. Nothing is stored here.

The data version covers the documents (`corpus/<data set>`), the drop list and the rule that splits them. A cache below becomes stale
when one of these changes, but not when other data sets have new duplicates.

```python
from pathlib import Path
from niels_cache_assets.corpus.reading import prepared_documents
from niels_cache_assets.registry import load_registry
next(prepared_documents(load_registry(), "<data set>", root=Path("cache")))
```"""

_REPORT = """The effect of preparing a data set: documents, bytes and tokens after each stage, reasons, lengths, duplicates.

`reports/corpus/<data set>/report.json`; the page `reports/cache.html` shows it as pictures.

```python
import json
json.load(open("cache/reports/corpus/<data set>/report.json"))["funnel"]
```"""


def corpus_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return the four assets, or nothing if no data set is prepared."""
    return [_documents(registry), _duplicates(registry), _kept(registry), _report(registry)] if registry.prepared() else []


def _documents(registry: Registry) -> dg.AssetsDefinition:
    own = dg.StaticPartitionMapping({name: name for name in registry.prepared()})
    deps = [dg.AssetDep(keys.UPSTREAM_KEYS["pretrain"], partition_mapping=own)]
    if in_parts := keys.parts_of_corpora(registry):
        joined = dg.StaticPartitionMapping({part: name for name, parts in in_parts.items() for part in parts})
        deps.append(dg.AssetDep(keys.CORPUS_PARTS, partition_mapping=joined))

    @dg.asset(
        key=keys.DOCUMENTS,
        deps=deps,
        partitions_def=keys.corpus_partitions(registry),
        group_name=_GROUP,
        kinds={"parquet"},
        code_version=Corpus.version,
        description=_DOCUMENTS,
    )
    def documents(
        context: dg.AssetExecutionContext,
        config: CorpusConfig,
        cache_root: dg.ResourceParam[CacheRoot],
        progress_sink: dg.ResourceParam[ProgressSink],
    ) -> dg.MaterializeResult:
        name = context.partition_key
        artifact = graph(registry, cache_root.path).corpus(name)
        if isinstance(artifact, JoinedCorpus):
            artifact = replace(artifact, forces_parts=not progress_sink.has_made([step.key for step in artifact.steps()]))
        reporter = BuildReporter(context, progress_sink, name=artifact.key, observed=keys.DOCUMENTS)
        with readable_failures():
            with StreamPlace(context, artifact.key, log=reporter.log) as place:
                outcome = materialize(
                    artifact,
                    force=config.force,
                    wait=config.wait,
                    on_progress=reporter.progress,
                    log=reporter.log,
                    waits_its_turn=place.take,
                )
            reporter.warn(outcome)
            if not outcome.kept:
                observe_what_was_read(context, registry, name, outcome.meta["dataset_revision"], root=cache_root.path)
            metadata = documents_metadata(outcome)
        reporter.tell(metadata)
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(outcome.meta["content_sha256"]))

    return documents


def _duplicates(registry: Registry) -> dg.AssetsDefinition:
    settings = fingerprint_of({**dedup_identity(registry.dedup), "order": dedup_order(registry)})
    ranges = [dg.AssetDep(keys.RANGES)] if registry.search_ranges else []

    @dg.asset(
        key=keys.DUPLICATES,
        deps=[dg.AssetDep(keys.DOCUMENTS, partition_mapping=keys.searched(registry)), *ranges],
        group_name=_GROUP,
        kinds={"parquet"},
        code_version=f"{Duplicates.version}-{settings[:8]}",  # so that changed settings of [dedup] show as unsynced
        description=_DUPLICATES,
    )
    def duplicates(
        context: dg.AssetExecutionContext,
        config: CorpusConfig,
        cache_root: dg.ResourceParam[CacheRoot],
        progress_sink: dg.ResourceParam[ProgressSink],
    ) -> dg.MaterializeResult:
        reporter = BuildReporter(context, progress_sink, name=keys.DUPLICATES.to_user_string())
        with readable_failures():
            found = graph(registry, cache_root.path)
            artifact = replace(found.duplicates(), forces_ranges=not progress_sink.has_made(found.before("corpus/duplicates")))
            outcome = materialize(artifact, force=config.force, wait=config.wait, log=reporter.log)
            reporter.warn(outcome)
        version = outcome.meta.get("content_sha256", "")  # empty if no data set uses dedup
        metadata = duplicates_metadata(outcome)
        reporter.tell(metadata)
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(version))

    return duplicates


def _kept(registry: Registry) -> dg.AssetsDefinition:
    @dg.asset(
        key=keys.KEPT,
        deps=[keys.DOCUMENTS, keys.DUPLICATES],
        partitions_def=keys.corpus_partitions(registry),
        group_name=_GROUP,
        kinds={"parquet"},
        code_version=Corpus.version,
        description=_KEPT,
    )
    def kept(context: dg.AssetExecutionContext, cache_root: dg.ResourceParam[CacheRoot]) -> dg.MaterializeResult:
        with readable_failures():
            prepared = open_prepared(registry, context.partition_key, root=cache_root.path)
            metadata = kept_metadata(prepared)
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(fingerprint_of(prepared.identity())))

    return kept


def _report(registry: Registry) -> dg.AssetsDefinition:
    @dg.asset(
        key=keys.REPORT,
        deps=[keys.DOCUMENTS, keys.DUPLICATES],
        partitions_def=keys.corpus_partitions(registry),
        group_name=keys.REPORTS_GROUP,
        kinds={"report"},
        code_version=CorpusReport.version,
        description=_REPORT,
    )
    def report(context: dg.AssetExecutionContext, config: CorpusConfig, cache_root: dg.ResourceParam[CacheRoot]) -> dg.MaterializeResult:
        with readable_failures():
            name = context.partition_key
            artifact = graph(registry, cache_root.path).report(name)
            outcome = materialize(artifact, force=config.force, wait=config.wait, log=context.log.info)
            metadata = report_metadata(outcome, draw=registry.dagster.plots)
            context.log.info(f"{name}: {told(metadata)}")
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(outcome.meta["meta_sha256"]))

    return report
