"""The documented import path of `niels_cache_runtime.loader.packing.rows`, which has the code."""

from niels_cache_runtime.loader.packing.rows import *  # noqa: F403
