"""Names that the definitions share: asset keys, groups, ops, jobs, pools. No definition is made here."""

from dagster import AssetKey, StaticPartitionsDefinition

from niels_cache_assets.registry import Registry
from niels_cache_runtime.formats import Family

LOCATION = "niels_cache_assets"
TOKENIZER = AssetKey("tokenizer")
STREAM_POOL = "source_stream"  # at most as many streams at a time as the instance's limit says

STREAM_OPS: dict[Family, str] = {"pretrain": "stream_pretrain_dataset", "sft": "stream_sft_dataset"}
TRAIN_KEYS: dict[Family, AssetKey] = {"pretrain": AssetKey(["pretrain", "train_shards"]), "sft": AssetKey(["sft", "train_pair"])}
VAL_KEYS: dict[Family, AssetKey] = {"pretrain": AssetKey(["pretrain", "val_shards"]), "sft": AssetKey(["sft", "val_pair"])}
META_KEYS: dict[Family, AssetKey] = {"pretrain": AssetKey(["pretrain", "meta_json"]), "sft": AssetKey(["sft", "meta_json"])}
UPSTREAM_KEYS: dict[Family, AssetKey] = {"pretrain": AssetKey(["upstream", "pretrain"]), "sft": AssetKey(["upstream", "sft"])}

TOKENIZER_JOB = "build_tokenizer"
FAMILY_JOBS: dict[Family, str] = {"pretrain": "build_pretrain", "sft": "build_sft"}


def family_keys(family: Family) -> list[AssetKey]:
    """The three assets that one pass over a data set writes, in topological order."""
    return [TRAIN_KEYS[family], VAL_KEYS[family], META_KEYS[family]]


def partitions(registry: Registry, family: Family) -> StaticPartitionsDefinition:
    """One partition per data set that can be built. Empty where the user has none: the definitions still load."""
    return StaticPartitionsDefinition(registry.partition_keys(family))
