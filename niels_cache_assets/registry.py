"""The documented import path for the names that `niels_cache_assets.project.registry` defines."""

from niels_cache_assets.project.registry import *  # noqa: F403
