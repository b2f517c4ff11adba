"""The run configuration that the launchpad shows.

None, or -1 for a budget, stands for the value in the registry. The registry checks all other values.
"""

from typing import Any

import dagster as dg
from pydantic import Field

from niels_cache_assets.base import defaults

AS_CONFIGURED = -1  # the launchpad shows this default, but hides a default of None
_BUDGETS = ("train_tokens", "val_tokens")
_REGISTRY = "Empty: the value of niels_cache.toml or the profile"
_BUDGET = f"{AS_CONFIGURED}: the value of niels_cache.toml or the profile"


class BuildConfig(dg.Config):
    """Settings of one run that every build takes."""

    wait: bool = Field(False, description="If another process is building the same, wait for it instead of failing")
    force: bool = Field(False, description="Build again, even if it is current")


class FamilyConfig(BuildConfig):
    """Settings of one run that builds a data set."""

    seed: int | None = Field(None, description=f"Seed of shuffles and splits (default {defaults.SEED}). {_REGISTRY}")
    threads: int | None = Field(None, description=f"Encoding threads; never changes the bytes. {_REGISTRY}, else every core")
    val_frac: float | None = Field(None, description=f"Share that goes to val, at least 0 and below 1. {_REGISTRY}")

    def run_settings(self) -> dict[str, Any]:
        """Return the settings that replace values of the registry in this run."""
        given = self.model_dump(exclude={"force", "wait"})
        return {key: value for key, value in given.items() if value is not None and not (key in _BUDGETS and value == AS_CONFIGURED)}


class PretrainConfig(FamilyConfig):
    """Settings of one run; a data set takes either token budgets or val_frac."""

    train_tokens: int | None = Field(AS_CONFIGURED, description=f"Token budget of train; the stream ends when it is met. {_BUDGET}")
    val_tokens: int | None = Field(AS_CONFIGURED, description=f"Token budget of val, met before train starts; 0 for no val. {_BUDGET}")
    shuffle_buffer: int | None = Field(None, description=f"Documents in the shuffle buffer; 0 keeps the input order. {_REGISTRY}")
    shard_bytes: int | None = Field(None, description=f"Size of a full shard in bytes, a whole number of tokens. {_REGISTRY}")
