"""The documented import path for the names that `niels_cache_assets.tokenizer.kinds` defines."""

from niels_cache_assets.tokenizer.kinds import *  # noqa: F403
