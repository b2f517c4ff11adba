"""The documented import path of `niels_cache_runtime.loader.report`. The code is there."""

from niels_cache_runtime.loader.report import *  # noqa: F403
