"""The documented import path of `niels_cache_assets.config.registry`. The code is there."""

from niels_cache_assets.config.registry import *  # noqa: F403
