"""The documented import path for the names that `niels_cache_assets.config.registry` defines."""

from niels_cache_assets.config.registry import *  # noqa: F403
