"""The documented import path of `CacheSplit` and `TokenStream`. The code is in `niels_cache_runtime.catalog`."""

from niels_cache_runtime.catalog import CacheSplit, TokenStream

__all__ = ["CacheSplit", "TokenStream"]
