"""The documented import path of `niels_cache_runtime.format.layout`. The code is there."""

from niels_cache_runtime.format.layout import *  # noqa: F403
