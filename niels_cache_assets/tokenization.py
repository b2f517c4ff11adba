"""The documented import path of `niels_cache_assets.tokenizer.kinds`. The code is there."""

from niels_cache_assets.tokenizer.kinds import *  # noqa: F403
