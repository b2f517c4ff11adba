"""The documented import path of `niels_cache_runtime.loader.report`, which has the code."""

from niels_cache_runtime.loader.report import *  # noqa: F403
