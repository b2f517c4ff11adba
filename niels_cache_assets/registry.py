"""The documented import path for the names in `niels_cache_assets.config.registry`."""

from niels_cache_assets.config.registry import *  # noqa: F403
