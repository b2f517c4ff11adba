"""Run configuration: what the launchpad shows. None, or -1 for a budget, is the registry's value; the registry checks all others."""

from typing import Any

import dagster as dg
from pydantic import Field

from niels_cache_assets.config import defaults

AS_CONFIGURED = -1  # a default that the launchpad shows; one of None it leaves out
_BUDGETS = ("train_tokens", "val_tokens")
_REGISTRY = "Empty: the value of niels_cache.toml or the profile"
_BUDGET = f"{AS_CONFIGURED}: as niels_cache.toml or the profile says"


class _BuildConfig(dg.Config):
    wait: bool = Field(False, description="Where another process is building the same: wait for it to end, instead of failing")


class TokenizerConfig(_BuildConfig):
    force: bool = Field(False, description="Train or import again, even if the tokenizer is what the settings ask for")


class CorpusConfig(_BuildConfig):
    force: bool = Field(False, description="Make it again, even if what is there is what the settings ask for")


class FamilyConfig(_BuildConfig):
    force: bool = Field(False, description="Build again, even if the cache is what the settings ask for")
    seed: int | None = Field(None, description=f"Seed of shuffles and splits (default {defaults.SEED}). {_REGISTRY}")
    threads: int | None = Field(None, description=f"Encoding threads; never changes the bytes. {_REGISTRY}, else every core")
    val_frac: float | None = Field(None, description=f"Share that goes to val, at least 0 and below 1. {_REGISTRY}")

    def run_settings(self) -> dict[str, Any]:
        """What this run asks for beside the registry."""
        given = self.model_dump(exclude={"force", "wait"})
        return {key: value for key, value in given.items() if value is not None and not (key in _BUDGETS and value == AS_CONFIGURED)}


class PretrainConfig(FamilyConfig):
    """Settings of one run; a data set takes token budgets or val_frac, not both."""

    train_tokens: int | None = Field(AS_CONFIGURED, description=f"Token budget of train; the stream ends when it is met. {_BUDGET}")
    val_tokens: int | None = Field(AS_CONFIGURED, description=f"Token budget of val, met before train starts; 0 for no val. {_BUDGET}")
    shuffle_buffer: int | None = Field(None, description=f"Documents in the shuffle buffer; 0 keeps the input order. {_REGISTRY}")
    shard_bytes: int | None = Field(None, description=f"Size of a full shard in bytes, an even number. {_REGISTRY}")


class SftConfig(FamilyConfig):
    """Settings of one run."""
