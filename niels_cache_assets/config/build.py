"""Settings of every build: table [build]."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from niels_cache_assets.config import defaults
from niels_cache_assets.sources.types import ConfigPath


class BuildSettings(BaseModel):
    """[build]: what every data set shares."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    cache_dir: ConfigPath = Field("cache", description="Root of all caches")
    seed: int = Field(defaults.SEED, ge=0, lt=2**63, description="Seed of shuffles and splits")
    shard_bytes: int = Field(defaults.SHARD_BYTES, ge=2, multiple_of=2, description="Exact size of a full shard, in bytes")
    threads: int | None = Field(None, ge=1, le=256, description="Encoding threads; None uses every core. Never changes the bytes")
    network_patience: float = Field(
        defaults.NETWORK_PATIENCE,
        ge=0,
        allow_inf_nan=False,
        strict=False,
        description="Seconds for which a request that fails is repeated before the build fails",
    )
