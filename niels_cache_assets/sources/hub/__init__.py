"""Sources from the Hugging Face hub. The hub's own library (datasets) streams the tables, from the hub or a mirror. `data` has the base
class.
"""

from typing import TYPE_CHECKING

from niels_cache_runtime.old_paths import former_names

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = former_names(__name__, "niels_cache_assets.sources.hub.data", "niels_cache_assets.sources.reading.places")
