"""The documented import path of `niels_cache_runtime.loader.map_style`, which has the code."""

from niels_cache_runtime.loader.map_style import *  # noqa: F403
