"""The code location that `dagster dev`, `dagster asset materialize -m niels_cache_assets.definitions` and CI load.

The registry (the configuration in niels_cache.toml) is read when this module is imported, so "Reload definitions" in Dagster's pages also
shows a data set that was added to niels_cache.toml. A program with its own registry calls `build_defs` from defs/assembly.py, whose import
reads no file.
"""

from niels_cache_assets.defs.assembly import build_defs
from niels_cache_runtime.errors import NielsCacheError

__all__ = ["build_defs", "defs"]

try:
    defs = build_defs()
except NielsCacheError as error:
    raise error from None  # Dagster's tools print every cause of an error, but this message is complete
