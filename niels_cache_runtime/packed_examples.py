"""The documented import path of `niels_cache_runtime.loader.packing.rows`. The code is there."""

from niels_cache_runtime.loader.packing.rows import *  # noqa: F403
