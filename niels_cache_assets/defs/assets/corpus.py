"""The assets `corpus/*`: the steps before tokenization, which exist only with data sets that have `prepare`.

`duplicates` is one asset, because the search covers all data sets at once. If caches depended on `duplicates`, a change of any drop list
(list of the duplicates of a data set) would make all caches stale. So caches depend on `kept`, and `kept` depends on `duplicates`. For each
data set, the data version of `kept` covers only the text that training will read.
"""

from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.corpus_report import CorpusReport
from niels_cache_assets.artifacts.duplicates import Duplicates, SearchStep
from niels_cache_assets.artifacts.repeats import Repeats
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.corpus.identity import dedup_identity, dedup_order
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assets.building import artifact_asset
from niels_cache_assets.defs.assets.parts import partition_asset
from niels_cache_assets.defs.keys import cuts_of, names_of
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.recording import kept_record
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import REPEATS, PrepareStep

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

_CUTS = """The places of repeated text that are cut out of documents, across data sets and splits, with the copy that stays.

`repeats/%s/<data set>.parquet`, for each data set with `prepare = [..., "%s"]`. One search covers all data sets. The first copy stays.

```python
import pyarrow.parquet as pq
pq.read_table("cache/repeats/%s/<data set>.parquet").to_pylist()[:5]
```"""

_KEPT = """The documents for the tokenizer: those of the corpus without those on the drop list and without cuts. Nothing is stored here.

The data version covers the documents (`corpus/<data set>`), the drop list, the cuts and the rule that splits them. A cache below becomes
stale when one of these changes, but not when other data sets have new duplicates.

```python
from pathlib import Path
from niels_cache_assets.artifacts.prepared_corpora import prepared_documents
from niels_cache_assets import load_registry
next(prepared_documents(load_registry(), "<data set>", root=Path("cache")))
```"""

_REPORT = """The effect of preparing a data set: documents, bytes and tokens after each stage, reasons, lengths, duplicates.

`reports/corpus/<data set>/report.json`; the page `reports/cache.html` shows it as pictures.

```python
import json
json.load(open("cache/reports/corpus/<data set>/report.json"))["funnel"]
```"""


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


def corpus_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return the four assets, or nothing if no data set is prepared, and those of steps that machines can share before tokenization.

    `corpus/parts` exists if the corpus of a data set is in parts: one partition for each part, which `corpus/documents` joins.
    `corpus/hashes` and `corpus/ranges` exist if [dedup] has several `ranges`: one partition for each range, and `corpus/duplicates` chooses
    by all of them. The steps of parts and ranges are those of `pretrain/parts` (assets/parts.py).
    """
    found: list[dg.AssetsDefinition] = []
    if registry.corpora_in_parts():
        parts = partition_asset(
            registry,
            "corpus_part",
            deps=keys.deps_on(registry, "corpus_part", "plan"),
            kinds={"parquet"},
            code_version=Corpus.version,
            description=_PARTS,
        )
        found.append(parts)
    if registry.search_ranges:
        shared: dict[str, Any] = {"kinds": {"numpy"}, "code_version": SearchStep.version}
        found.append(artifact_asset(registry, "hashes", deps=[_searched(registry)], description=_HASHES, **shared))
        found.append(partition_asset(registry, "range", deps=[names_of(registry).hashes], description=_RANGES, **shared))
    return [*found, *_corpora(registry)] if registry.prepared() else []


def _corpora(registry: Registry) -> list[dg.AssetsDefinition]:
    names, prepared = names_of(registry), registry.prepared()
    above = [keys.mapped(names.upstream["pretrain"], prepared), *keys.deps_on(registry, "corpus", "corpus_part")]
    settings = fingerprint_of({**dedup_identity(registry.dedup), "order": dedup_order(registry)})

    @dg.asset(
        key=names.kept,
        deps=[names.documents, names.duplicates, *cuts_of(registry)],
        partitions_def=keys.corpus_partitions(registry),
        kinds={"parquet"},
        code_version=Corpus.version,
        description=_KEPT,
        required_resource_keys=names.resources,
    )
    def kept(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with readable_failures():
            return kept_record(registry, context.partition_key, root=root_of(context, names)).result()

    return [
        artifact_asset(
            registry,
            "corpus",
            partitions=prepared,
            streams=True,
            deps=above,
            kinds={"parquet"},
            code_version=Corpus.version,
            description=_DOCUMENTS,
        ),
        artifact_asset(
            registry,
            "corpus/duplicates",
            deps=[_searched(registry), *([names.ranges] if registry.search_ranges else [])],
            kinds={"parquet"},
            code_version=f"{Duplicates.version}-{settings[:8]}",  # so that changed settings of [dedup] show as unsynced
            description=_DUPLICATES,
        ),
        *(_cuts(registry, step) for step in REPEATS if registry.prepared(step)),
        kept,
        artifact_asset(
            registry,
            "report",
            partitions=prepared,
            deps=[names.documents, names.duplicates, *cuts_of(registry)],
            kinds={"report"},
            code_version=CorpusReport.version,
            description=_REPORT,
        ),
    ]


def _cuts(registry: Registry, step: PrepareStep) -> dg.AssetsDefinition:
    settings = fingerprint_of({**getattr(registry, step).model_dump(exclude={"ranges"}), "order": dedup_order(registry, step)})
    return artifact_asset(
        registry,
        f"repeats/{step}",
        deps=[_searched(registry, step), names_of(registry).duplicates, *cuts_of(registry, before=step)],
        kinds={"parquet"},
        code_version=f"{Repeats.version}-{settings[:8]}",
        description=_CUTS % ((step,) * 3),
    )


def _searched(registry: Registry, step: PrepareStep = "dedup") -> dg.AssetDep:
    mapping = dg.SpecificPartitionsPartitionMapping(registry.prepared(step))
    return dg.AssetDep(names_of(registry).documents, partition_mapping=mapping)
