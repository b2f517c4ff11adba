"""The documented import path of `niels_cache_runtime.loader.trace`, which has the code."""

from niels_cache_runtime.loader.trace import *  # noqa: F403
