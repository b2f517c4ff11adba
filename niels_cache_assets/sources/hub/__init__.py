"""The Hugging Face hub: tables streamed by the hub's own library, or read from a mirror. `data` has the base class of the kinds."""

from typing import TYPE_CHECKING

from niels_cache_runtime.old_paths import former_names

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = former_names(__name__, "niels_cache_assets.sources.hub.data", "niels_cache_assets.sources.reading.places")
