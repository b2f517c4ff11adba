"""The documented import path of `niels_cache_runtime.loader.blocks.visits`, which has the code."""

from niels_cache_runtime.loader.blocks.visits import *  # noqa: F403
