"""Reports about the content of caches. Nothing here imports Dagster.

    cache.py      all caches         tuning.py    facts that help to choose the limits of a data set
    history.py    the records of Dagster (defs/home/history.py reads them)
    markdown.py, page.py (page.html, page.css)   the output; page.py draws the plots

Nothing here changes a cache. Only pages show the current time.
"""

from pathlib import Path


def page_path(root: Path) -> Path:
    """Return the default path of the report of a cache root."""
    return root / "reports" / "cache.html"
