"""The documented import path of `niels_cache_runtime.loader.trace`. The code is there."""

from niels_cache_runtime.loader.trace import *  # noqa: F403
