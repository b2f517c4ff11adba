"""The metadata of assets in Dagster's UI (numbers, samples, tables and pictures)."""

from typing import TYPE_CHECKING

from niels_cache_runtime.old_paths import former_names

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = former_names(__name__, "niels_cache_assets.defs.metadata.builds")
