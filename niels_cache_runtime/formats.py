"""The documented import path of `niels_cache_runtime.format.layout`, which has the code."""

from niels_cache_runtime.format.layout import *  # noqa: F403
