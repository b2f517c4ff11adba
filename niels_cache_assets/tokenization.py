"""The documented import path for the names in `niels_cache_assets.tokenizer.kinds`."""

from niels_cache_assets.tokenizer.kinds import *  # noqa: F403
