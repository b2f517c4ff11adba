"""The documented import path of `niels_cache_assets.tokenizer.kinds`, which has the code."""

from niels_cache_assets.tokenizer.kinds import *  # noqa: F403
