"""Names that the definitions share: asset keys, groups, ops, jobs, pools and partitions. Nothing is defined here."""

from collections.abc import Mapping, Sequence

from dagster import (
    AssetDep,
    AssetKey,
    DagsterRunStatus,
    SpecificPartitionsPartitionMapping,
    StaticPartitionMapping,
    StaticPartitionsDefinition,
)

from niels_cache_assets.corpus.identity import dedup_order
from niels_cache_assets.corpus.layout import range_name
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.format.layout import FAMILIES, SPLITS, Family, Split

LOCATION = "niels_cache_assets"
TOKENIZER = AssetKey("tokenizer")
PARTITION_TAG = "dagster/partition"
IN_PROGRESS = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
STREAM_POOL = "source_stream"  # the limit of this pool is the number of streams at the same time; no op is in the pool (stream_slots.py)

STREAM_OPS: dict[str, str] = {family: f"stream_{family}_dataset" for family in FAMILIES}
SPLIT_KEYS: dict[Family, dict[Split, AssetKey]] = {
    "pretrain": {split: AssetKey(["pretrain", f"{split}_shards"]) for split in SPLITS},
    "sft": {split: AssetKey(["sft", f"{split}_pair"]) for split in SPLITS},
}
META_KEYS = {family: AssetKey([family, "meta_json"]) for family in FAMILIES}
UPSTREAM_KEYS = {family: AssetKey(["upstream", family]) for family in FAMILIES}

PLAN, VAL_PART, PARTS = (AssetKey(["pretrain", name]) for name in ("plan", "val_part", "parts"))
PARTS_POOL = "parts"  # its limit is the number of parts that are built at a time

DOCUMENTS = AssetKey(["corpus", "documents"])
CORPUS_PARTS, HASHES, RANGES = (AssetKey(["corpus", name]) for name in ("parts", "hashes", "ranges"))
DUPLICATES = AssetKey(["corpus", "duplicates"])
KEPT = AssetKey(["corpus", "kept"])
REPORT = AssetKey(["corpus", "report"])
MIXTURE = AssetKey(["reports", "mixture"])
CACHE_REPORT = AssetKey(["reports", "cache"])
REPORTS_GROUP = "reports"  # reports for people; no asset depends on them

INDEX = AssetKey(["index", "gpt"])
PUBLISHED_KEYS = {family: AssetKey(["published", family]) for family in FAMILIES}

ASSETS: dict[str, AssetKey] = {  # by key or by kind of artifact: the asset that records it
    "tokenizer": TOKENIZER,
    "corpus": DOCUMENTS,
    "corpus/duplicates": DUPLICATES,
    "corpus_part": CORPUS_PARTS,
    "hashes": HASHES,
    "range": RANGES,
    "report": REPORT,
    "plan": PLAN,
    "val_part": VAL_PART,
    "part": PARTS,
    "pretrain": META_KEYS["pretrain"],
    "sft": META_KEYS["sft"],
    "index": INDEX,
}


def recorded_as(key: str) -> tuple[AssetKey, str | None]:
    """Return the asset and the partition that record the artifact with this key. An artifact that exists once has no partition."""
    kind, _, name = key.partition("/")
    return (ASSETS[key], None) if key in ASSETS else (ASSETS[kind], name)


def family_keys(family: Family) -> list[AssetKey]:
    """Return the three assets that one pass over a data set writes, in topological order."""
    return [*SPLIT_KEYS[family].values(), META_KEYS[family]]


def partitions(registry: Registry, family: Family) -> StaticPartitionsDefinition:
    """Return one partition for each data set that can be built. The result may be empty, and the definitions still load."""
    return StaticPartitionsDefinition(registry.partition_keys(family))


def corpus_partitions(registry: Registry) -> StaticPartitionsDefinition:
    """Return one partition for each data set with a corpus."""
    return StaticPartitionsDefinition(registry.prepared())


def parts_of_datasets(registry: Registry) -> dict[str, list[str]]:
    """Return for each data set in parts the names of its parts, such as NAME/part-00017: the partitions of `pretrain/parts`."""
    return {name: [f"{name}/{part_name(number)}" for number in range(registry.pretrain[name].total_parts)] for name in registry.in_parts()}


def parts_of_corpora(registry: Registry) -> dict[str, list[str]]:
    """Return for each corpus in parts the names of its parts, such as NAME/part-00017: the partitions of `corpus/parts`."""
    return {
        name: [f"{name}/{part_name(number)}" for number in range(registry.pretrain[name].corpus_parts)]
        for name in registry.corpora_in_parts()
    }


def ranges(registry: Registry) -> list[str]:
    """Return the names of the ranges of the search for duplicates, such as range-00003: the partitions of `corpus/ranges`."""
    return [range_name(number) for number in range(registry.search_ranges)]


def mapped(key: AssetKey, readers: Mapping[str, str | list[str]] | Sequence[str]) -> AssetDep:
    """Return the dependency on an asset.

    Args:
        key: Key of the asset.
        readers: For each of its partitions, the dependent partition or partitions. A list names partitions that both assets have.
    """
    mapping = readers if isinstance(readers, Mapping) else {name: name for name in readers}
    return AssetDep(key, partition_mapping=StaticPartitionMapping(mapping))


def search_mapping(registry: Registry) -> SpecificPartitionsPartitionMapping:
    """Return the mapping from the search for duplicates to the corpora that it reads."""
    order = dedup_order(registry)
    return SpecificPartitionsPartitionMapping([name for name in registry.prepared() if name in order])


def has_shared_steps(registry: Registry) -> bool:
    """Return whether several processes can share a step: the parts of a data set or of a corpus, or the ranges of the search."""
    return bool(datasets_with_plan(registry) or registry.search_ranges)


def datasets_with_plan(registry: Registry) -> list[str]:
    """Return the data sets that a plan divides, in order."""
    plans = {*registry.in_parts(), *registry.corpora_in_parts()}
    return [name for name in registry.partition_keys("pretrain") if name in plans]


def datasets_with_val_part(registry: Registry) -> list[str]:
    """Return the data sets in parts whose val is made before their parts."""
    return [name for name in registry.in_parts() if registry.pretrain[name].has_val_part]
