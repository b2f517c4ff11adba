"""The schemas of [build], [blend.NAME], [reports], [find] and [dagster]. running.py has those of [notify], [cluster] and [publish].

Every other schema is beside the code that it configures: in `settings.py` of tokenizer, cleaning and dedup, and in each source.
"""

import re
from typing import Any, Literal

from pydantic import Field, PositiveFloat, field_validator

from niels_cache_assets.base import defaults
from niels_cache_assets.base.config_path import ConfigPath
from niels_cache_assets.base.schema import Table, Words

MEGATRON_SEED = 1234  # the default of Megatron-LM's --seed
ALL_TRAIN = "1"
MAX_EPOCHS = 4.0  # up to this number of epochs, repeated text is nearly as good as new text: Muennighoff et al. 2023, arXiv:2305.16264

_SHARE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*")
_OWNER = re.compile(r"team:\w+|[^@\s]+@[^@\s]+\.[^@\s]+")
_TAG = re.compile(r"[A-Za-z0-9_.-]{1,63}")


class BuildSettings(Table):
    """[build]: settings that all data sets share."""

    cache_dir: ConfigPath = "cache"
    """Root folder of all caches"""
    store: str | None = None
    """Address of a bucket, such as s3://bucket/prefix, in which machines without a shared folder build data sets"""
    seed: int = Field(defaults.SEED, ge=0, lt=2**63)
    """Seed for shuffles and splits"""
    shard_bytes: int = Field(defaults.SHARD_BYTES, ge=2, multiple_of=2)
    """Exact size of a full shard, in bytes"""
    token_dtype: Literal["uint16-le", "uint32-le"] | None = None
    """On-disk token type; by default uint16-le for up to 65,536 ids, otherwise uint32-le"""
    threads: int | None = Field(None, ge=1, le=256)
    """Number of encoding threads; by default one per core. Does not affect the bytes"""
    verify_parts: Literal["size", "sha256"] = "size"
    """How each part is checked against its meta.json before parts are joined: by size, or by content"""
    near_check: Literal["sample", "all"] = "sample"
    """How much of train is compared with val for near copies: a sample of about 20 million tokens, or all. Equal texts are always found"""
    network_patience: float = Field(defaults.NETWORK_RETRY_SECONDS, ge=0, allow_inf_nan=False, strict=False)
    """How long to retry a failed request, in seconds, before the build fails"""
    record_seconds: float = Field(defaults.RECORD_SECONDS, gt=0, le=3600, strict=False)
    """Seconds after which a build records its progress again; a killed build repeats the work since its last record. 600 with a store"""

    @property
    def seconds_between_records(self) -> float:
        """`record_seconds`, or its default for a store, where each record sends the unfinished files."""
        is_default = "record_seconds" not in self.model_fields_set
        return defaults.RECORD_SECONDS_IN_STORE if self.store is not None and is_default else self.record_seconds


class BlendSettings(Table):
    """[blend.NAME]: a weighted blend of pretrain data sets in Megatron-LM's order, with indices built in advance."""

    weights: dict[str, PositiveFloat] = Field(min_length=1)
    """Weight of each member, by the name of its pretrain table, on any scale"""
    sequence_length: int = Field(ge=1)
    """Number of tokens per sample: Megatron-LM's --seq-length"""
    num_samples: int = Field(ge=1, le=2**60)
    """Number of samples in the run: --train-iters times --global-batch-size, or --train-samples"""
    seed: int = Field(MEGATRON_SEED, ge=0, lt=2**32)
    """Megatron-LM's --seed"""
    split: str = Field(ALL_TRAIN, description='Megatron-LM\'s --split: shares of train, valid and test, such as "99,1,0"')
    part: Literal["train", "valid", "test"] = "train"
    """The split to blend: train, valid or test"""

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, value: dict[str, float]) -> dict[str, float]:
        if not sum(value.values()) < float("inf"):
            raise ValueError("the weights add up to infinity")
        return value

    @field_validator("split")
    @classmethod
    def _check_split(cls, value: str) -> str:
        """Check the form of a split, as `split_ranges` of the runtime does, which would load torch."""
        parts = value.split(",")
        if len(parts) > 3 or not all(_SHARE.fullmatch(part) for part in parts) or not any(map(float, parts)):
            raise ValueError('give the weights of train, valid and test, such as "99,1,0"')
        return value


class ReportsSettings(Table):
    """[reports]: the training run over all pretrain data sets that `reports/mixture` assumes if there is no [blend.NAME]."""

    steps: int | None = Field(None, ge=1, le=2**40)
    """Number of training steps; by default enough to read everything once"""
    batch_size: int = Field(32, ge=1, le=2**20)
    """Number of samples per step across all ranks; also applies to blends"""
    sequence_length: int = Field(1024, ge=1, lt=2**31)
    """Number of tokens per sample"""
    max_epochs: float = Field(MAX_EPOCHS, gt=0, le=2**20, strict=False)
    """Warn if a data set is read for more epochs; also applies to blends"""


class FindSettings(Table):
    """[find]: indices of caches, which make `niels-cache find` fast."""

    index: Words = ()
    """The data sets that get an index: about 4 bytes on disk for each token"""
    range_tokens: int = Field(1 << 27, ge=1, le=1 << 27)
    """Number of tokens that are sorted at once. A sort takes 10 bytes of memory a token, 15 for a vocabulary above 65,536"""


class NameSettings(Table):
    """Keys of [dagster] that are also attributes of a component: names in a code location that has assets of others."""

    key_prefix: str | None = Field(None, pattern="^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", examples=["nlp"])
    """First parts of all asset keys, such as "nlp" or "team/nlp". Names of jobs, ops, sensors, resources and pools begin with it, too"""
    group: str | None = Field(None, pattern="^[A-Za-z0-9_]+$", examples=["nlp"])
    """Group of all assets; by default each has a group of its kind"""
    pools: dict[str, str] = Field({})
    """Other names for the pools, such as { parts = "large_machine" }. A limit that such a pool has is not changed"""

    @field_validator("pools")
    @classmethod
    def _check_pools(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in ("parts", "source_stream"):
                raise ValueError(f"{name!r} is no pool; write parts or source_stream")
        return value


class ComponentSettings(NameSettings):
    """Attributes of a NielsCacheComponent. The names that it gives override those of its tables."""

    config: str | None = None
    """Path of a niels_cache.toml, relative to defs.yaml"""
    tables: dict[str, Any] = Field({})
    """The tables of a niels_cache.toml in its place, with paths relative to defs.yaml"""


class DagsterSettings(NameSettings):
    """[dagster]: settings for Dagster and its UI, which never change the bytes of a cache."""

    owners: Words = ()
    """Owners of the assets: email addresses ("ada@example.org") and teams ("team:data")"""
    tags: dict[str, str] = Field({})
    """Tags for the assets, such as { project = "tiny" }"""
    plots: bool = False
    """Draw PNG plots of each build, at the cost of time and database space"""
    upstream_builds: bool = False
    """Let `upstream_revision_sensor` request a new build when upstream has changed"""
    notes_quiet_seconds: int = Field(300, ge=0)
    """How long a folder of notes must stay unchanged, in seconds, before it is built"""
    location: str = "niels_cache_assets"
    """Name of the code location under which build-all records its runs. In a project of `dg`, the location of the project"""

    @field_validator("owners")
    @classmethod
    def _check_owners(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for owner in value:
            if not _OWNER.fullmatch(owner):
                raise ValueError(f"{owner!r} is neither an address nor a team; write it as 'ada@example.org' or 'team:data'")
        return value

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if not _TAG.fullmatch(key) or not (text == "" or _TAG.fullmatch(text)):
                raise ValueError(f"{key!r} = {text!r}: a tag has at most 63 letters, digits, _ - .")
        return value
