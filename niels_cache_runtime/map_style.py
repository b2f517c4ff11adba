"""The documented import path of `niels_cache_runtime.loader.map_style`. The code is there."""

from niels_cache_runtime.loader.map_style import *  # noqa: F403
