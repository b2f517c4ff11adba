"""The report about the content of all caches, as data. Nothing here imports Dagster or changes a cache.

    cache.py     all caches
    history.py   the records of Dagster (defs/home/history.py reads them)

Pages and pictures are in the package `niels_cache_pages`. Only pages show the current time.
"""

from pathlib import Path


def page_path(root: Path) -> Path:
    """Return the default path of the report of a cache root."""
    return root / "reports" / "cache.html"
