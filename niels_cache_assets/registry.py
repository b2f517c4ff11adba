"""The documented import path of `niels_cache_assets.config.registry`, which has the code."""

from niels_cache_assets.config.registry import *  # noqa: F403
